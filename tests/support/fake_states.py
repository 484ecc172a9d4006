"""State slots without arithmetic: a state is a hash of all tokens that it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.interface.state_check import check_states
from penstock.interface.step import StepInput

State = tuple[int, int]  # tokens seen, the hash of them
NOTHING: State = (0, 17)


def after(state: State, token: int) -> State:
    """The state that has seen one token more."""
    seen, before = state
    return (seen + 1, hash((before, token, seen)))


@dataclass
class FakeStates:
    """What slots hold, and what is logged in them: a wrong slot, a token that is seen twice or not
    at all, and a stale snapshot change what comes of it."""

    num_slots: int
    log: int = 0
    memory: dict[int, State] = field(default_factory=dict)
    logs: dict[int, dict[int, int]] = field(default_factory=dict)
    """Tokens by their positions."""

    def begin(self, step: StepInput) -> None:
        check_states(step, self.num_slots, self.log)
        assert step.states is not None
        for source, target in step.states.copies.tolist():
            self.memory[target] = self.memory[source]
            self.logs[target] = dict(self.logs.get(source, {}))

    def run(self, step: StepInput, sequence: int) -> list[State]:
        """The state behind each of a sequence's rows."""
        states = step.states
        assert states is not None
        rows = range(int(step.query_starts[sequence]), int(step.query_starts[sequence + 1]))
        end = int(step.context_lens[sequence])
        slot, seen = int(states.slots[sequence]), int(states.seen[sequence])
        stored = end - int(states.tentative[sequence])
        wanted = {n: to for s, n, to in states.snapshots.tolist() if s == sequence}
        state = self.memory[slot] if seen else NOTHING
        assert state[0] == seen, f"slot {slot} has seen {state[0]} tokens, not {seen}"
        log, behind = self.logs.setdefault(slot, {}), []
        if seen == stored:
            self.memory[slot] = state
        for position in range(seen, end):
            row = rows.stop - (end - position)
            token = log[position] if row < rows.start else int(step.token_ids[row])
            state = after(state, token)
            if row >= rows.start:
                behind.append(state)
            if position >= stored:
                log[position] = token
            if state[0] == stored:
                self.memory[slot] = state
            if state[0] in wanted:
                self.memory[wanted[state[0]]] = state
        for position in [p for p in log if p < end - self.log]:
            del log[position]
        return behind
