"""What is found of prompts and outputs that were computed before."""

from __future__ import annotations

from support.scheduler_loop import check_complete, make_loop, request


def test_a_prefix_is_found_but_never_the_whole_prompt() -> None:
    loop = make_loop()
    prompt = list(range(16))
    for name in "ab":
        leader = request(name, prompt)
        loop.scheduler.add(leader)
        loop.run()
    assert leader.num_cached_tokens == 12
    stats = loop.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (32, 12)
    assert loop.outputs["a", 0] == loop.outputs["b", 0]


def test_another_salt_finds_nothing() -> None:
    loop = make_loop()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        leader = request(name, list(range(16)), salt=salt)
        loop.scheduler.add(leader)
        loop.run()
        assert leader.num_cached_tokens == (12 if name == "c" else 0)


def test_output_is_found_by_the_next_turn() -> None:
    loop = make_loop()
    first = request("a", list(range(10)), max_tokens=9)
    loop.scheduler.add(first)
    loop.run()
    second = request("b", [*first.token_ids, 1, 2])
    loop.scheduler.add(second)
    loop.run()
    assert second.num_cached_tokens == 16  # 18 of the 19 were computed
    check_complete(loop, [first, second])


def test_a_block_is_not_found_before_the_step_that_writes_it_ran() -> None:
    loop = make_loop(budget=64)
    leaders = [request(name, list(range(20))) for name in "ab"]
    for leader in leaders:
        loop.scheduler.add(leader)
    loop.run()
    assert [s.num_cached_tokens for s in leaders] == [0, 0]
    check_complete(loop, leaders)


def test_prompt_logprobs_see_the_whole_prompt_even_when_it_is_cached() -> None:
    loop = make_loop(budget=8)
    prompt = list(range(30))
    plain = request("plain", prompt)
    loop.scheduler.add(plain)
    loop.run()
    detailed = request("detailed", prompt, prompt_logprobs=0, n=3)
    loop.scheduler.add(detailed)
    loop.run()
    assert detailed.num_cached_tokens == 0
    assert len(loop.prompt_rows["detailed"]) == 29
    check_complete(loop, [plain, detailed])
    assert loop.scheduler.stats().prefix_queries == 30
