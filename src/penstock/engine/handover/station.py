"""Makes the core of an engine with a role: refuses what can be refused before weights are read, and
starts the threads when they are."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from penstock.engine.block_identity import BlockIdentity
from penstock.engine.cached_blocks import CachedBlocks, check_exchange
from penstock.engine.core import EngineCore
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.handover.decode import INBOX_BYTES, DecodeCore
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.peer import Over, Peer, Piece
from penstock.engine.handover.prefill import PrefillCore
from penstock.engine.handover.visitors import Visitor, Visitors
from penstock.errors import ConfigError
from penstock.handover_config import DecodeRole, PrefillRole, Role
from penstock.processes.wake import Wake
from penstock.weights.model_files import ModelFiles


@dataclass(frozen=True)
class Station:
    """The place of an engine among those that compute prompts apart."""

    role: Role
    engine_plan: EnginePlan
    wake: Wake
    visitors: Visitors | None

    @classmethod
    def open(cls, role: Role, engine_plan: EnginePlan) -> Station:
        """Check the role, and take the address of a prefill engine. Raises ConfigError."""
        _log_to_stderr()
        config = engine_plan.config
        what = "--role prefill" if isinstance(role, PrefillRole) else "--role decode"
        role.check()
        check_exchange(
            engine_plan.plan,
            config.backend,
            config.tensor_parallel,
            config.pipeline_parallel,
            config.enable_prefix_caching,
            what,
        )
        if engine_plan.plan.adapters is not None:
            raise ConfigError(
                f"{what}: adapters (--max-loras, --lora-modules) are not served where prompts are "
                "computed apart yet; leave one of both out"
            )
        if config.kv_disk is not None and isinstance(role, DecodeRole):
            raise ConfigError(
                "--role decode has prefixes computed elsewhere, and reads none from --kv-disk yet; "
                "give that to the prefill engine"
            )
        wake = Wake()
        visitors = Visitors(role.listen, wake) if isinstance(role, PrefillRole) else None
        return cls(role, engine_plan, wake, visitors)

    @property
    def told(self) -> str:
        """A line for the user who starts the engine."""
        if isinstance(self.role, DecodeRole):
            return f"has long prompts computed by {', '.join(map(str, self.role.prefill))}"
        assert self.visitors is not None
        return f"computes prompts for the decode engines that connect to {self.visitors.address}"

    def begin(self, core: EngineCore, files: ModelFiles) -> PrefillCore[Visitor] | DecodeCore:
        """Wrap the core, which is closed with what is returned, and start the threads.

        Raises ConfigError where the executor has no blocks to give, and WeightError where weights
        cannot be read for their digest.
        """
        blocks = core.blocks
        if blocks is None:
            raise ConfigError(
                f"the {core.config.backend} backend does not hand over blocks of its KV cache yet; "
                "start without --role"
            )
        identity = BlockIdentity.of(self.engine_plan, files)
        if isinstance(self.role, PrefillRole):
            assert self.visitors is not None
            introduction = Introduction("prefill", identity, blocks.group_bytes, self.role.key)
            self.visitors.start(introduction, core.max_model_len)
            return PrefillCore(core, blocks, self.visitors)
        return self._decode(self.role, core, blocks, identity)

    def _decode(
        self, role: DecodeRole, core: EngineCore, blocks: CachedBlocks, identity: BlockIdentity
    ) -> DecodeCore:
        introduction = Introduction(
            "decode", identity, blocks.group_bytes, role.key, role.any_kernels
        )
        inbox: Inbox[Piece | Over] = Inbox(self.wake, INBOX_BYTES)
        peers = [
            Peer(address, introduction, inbox, role.timeout_s, blocks.block_size)
            for address in role.prefill
        ]
        for peer in peers:
            peer.start()
        return DecodeCore(core, blocks, role, inbox, peers)


def _log_to_stderr() -> None:
    """What an engine's process has to say of connections goes to where the server's log goes."""
    log = logging.getLogger("penstock.handover")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
