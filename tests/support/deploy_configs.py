"""Configurations of ``penstock deploy``, drawn: whatever a file may say and be taken."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.routing.policies import POLICIES

_NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
_OBJECTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_ODD = st.sampled_from(
    ["1e3", "0o17", "y", "No", "~", "null", ".5", "-", "2026-11-28", "0x1F", "1_000", "a: b", "# c"]
)
"""Texts that YAML could take for something else."""
_TEXTS = (
    _ODD
    | st.sampled_from(["$(PATH)", "a$$b", "two\nlines\n", " spaces "])
    | st.text(
        # Nothing that TOML or a command line cannot have.
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        max_size=12,
    )
)
_OPTIONS = st.dictionaries(
    st.from_regex(r"x[a-z_-]{0,8}", fullmatch=True),
    _TEXTS | st.integers() | st.booleans() | st.lists(_TEXTS, min_size=1, max_size=2),
    max_size=3,
)
_SLO = st.lists(st.sampled_from(["ttft:500ms", "tpot:50", "e2el:10s"]), max_size=2)


def _table(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys, with values that they may have."""
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def deployable(draw: st.DrawFn) -> dict[str, Any]:
    """Tables of a fleet of which both kinds of manifests can be made."""
    least = draw(st.integers(1, 20))
    replicas = {
        "min": least,
        "cpus": draw(st.sampled_from([0.25, 1, 2.5, 4, 96.0]) | st.floats(0.01, 200)),
        **draw(
            _table(
                max=st.integers(least, 40),
                gpus=st.integers(0, 8),
                memory=st.sampled_from(["512Mi", "1.5Gi", "8GiB", "2Ti"]),
                grace=st.integers(1, 86_400),
                surge=st.integers(0, 100),
            )
        ),
    }
    kubernetes = {
        "image": draw(st.sampled_from(["penstock", "registry.example:5000/a/b:1.0@sha256:00"])),
        **draw(
            _table(
                namespace=_OBJECTS,
                models_claim=_OBJECTS,
                models_path=st.sampled_from(["/models", "/a b"]),
                api_keys_secret=_OBJECTS,
                start=st.integers(1, 86_400),
            )
        ),
    }
    more = _table(
        name=_NAMES,
        model=_TEXTS.filter(lambda text: text != "" and not text.startswith("-")),
        revision=_TEXTS,
        serve=_OPTIONS,
        autoscaling=_table(
            sequences=st.floats(0.01, 1000),
            slo=_SLO,
            goodput=st.floats(0.01, 1),
            window=st.floats(1, 86_400),
            up_after=st.floats(0, 3600),
            down_after=st.floats(0, 3600),
        ),
        routing=_table(
            port=st.integers(1, 65_535).filter(lambda port: port not in (6379, 8265, 10_001)),
            routers=st.integers(1, 9),
            policy=st.sampled_from(sorted(POLICIES)),
            decode_tokens=st.integers(1, 10_000),
            uncached=st.floats(0, 9),
            lost=st.floats(0, 9),
            wait=st.floats(0, 86_400),
            request_timeout=st.floats(0.001, 86_400),
            allowed_hosts=st.lists(st.sampled_from(["a.example", "*"]), max_size=2),
            access_log=st.booleans(),
        ),
    )
    return {"replicas": replicas, "kubernetes": kubernetes, **draw(more)}
