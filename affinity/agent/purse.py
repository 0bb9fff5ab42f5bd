"""The budget of a loop: a limit whose rate the answers of a model use up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from affinity.conversation.wake import Wake
from affinity.errors import InvalidLimit, InvalidOptions, WakeMisuse
from affinity.flow.limit import Limit, LimitKey
from affinity.tracing import usage_attributes
from affinity.user_code import call_sync, check_function

Cost: TypeAlias = Callable[[Mapping[str, int]], int]
"""Returns the units of a budget that an answer of the model costs, by its usage."""

_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


class Purse:
    """Pays for the answers of a model."""

    def __init__(self, wake: Wake, budget: Limit | LimitKey, cost: Cost | None) -> None:
        """Check the budget.

        Raises:
            InvalidLimit: it is no limit, has no rate, or has keys and none is named.
            InvalidOptions: ``cost`` takes other arguments.
        """
        if cost is not None:
            check_function(cost, "cost", "usage")
        limit = budget.limit if isinstance(budget, LimitKey) else budget
        if not isinstance(limit, Limit):
            raise InvalidLimit(f"a budget is a Limit, or a key of one as tokens.key('acme'), not {budget!r:.200}")
        if limit.rate is None:
            raise InvalidLimit(f"limit {limit.name!r} is no budget: it has no rate")
        if limit.keyed and limit is budget:
            raise InvalidLimit(f"limit {limit.name!r} has keys: name one, as in {limit.name}.key(owner)")
        self._wake, self._budget, self._cost = wake, budget, cost

    async def find_refusal(self) -> str | None:
        """Return why it cannot pay, for people; None: it can."""
        found = await self._wake.budget(self._budget)
        if found.is_open:
            return None
        text = str(found)
        if found.rate is not None and not found.paused and found.closed_until is None:
            at = datetime.now(UTC) + timedelta(seconds=found.rate.per)
            text = f"{text}. It has more at {at:%Y-%m-%d %H:%M:%S} UTC at the latest"
        return f"{text[0].upper()}{text[1:]}."

    async def charge(self, usage: Mapping[str, int]) -> None:
        """Pay for an answer.

        Raises:
            WakeMisuse: it is not known how much.
            InvalidOptions: ``cost`` has returned no number of units.
        """
        await self._wake.consume(self._budget, self._units(usage))

    def _units(self, usage: Mapping[str, int]) -> int:
        if self._cost is not None:
            units = call_sync(self._cost, usage)
            if type(units) is not int or units < 0:
                raise InvalidOptions(f"cost has returned {units!r:.80}: return an integer from 0")
            return units
        found = usage_attributes(usage)
        tokens = [found[name] for name in _TOKENS if name in found]
        if not tokens:
            raise WakeMisuse(
                "the answer of the model has no usage in tokens, which the budget is charged with: give "
                "ModelReply(usage=...), or run_loop(cost=...)"
            )
        return sum(int(number) for number in tokens)
