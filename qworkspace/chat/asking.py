"""How memory asks a model: the one for light work, else the agent's own; what it used is told on the bus."""

from __future__ import annotations

from collections.abc import Callable

from qworkspace.base.clock import Clock
from qworkspace.base.events import EventBus
from qworkspace.chat.models import ModelSource
from qworkspace.chat.offline import OFFLINE
from qworkspace.chat.reliable import RetryPolicy, complete
from qworkspace.chat.wire import Prompt
from qworkspace.config.models import AgentConfig
from qworkspace.memory.asking import NoModel, Purpose
from qworkspace.sessions.models import user_message


class ModelAsk:
    """`Ask` of one agent. `config` is asked at each question: the model is the one that is active then."""

    def __init__(
        self, models: ModelSource, config: Callable[[], AgentConfig], *, agent_id: str, bus: EventBus, clock: Clock
    ) -> None:
        self._models = models
        self._config = config
        self._agent_id = agent_id
        self._bus = bus
        self._clock = clock

    async def __call__(self, system: str, question: str, *, purpose: Purpose) -> str:
        config = self._config()
        asked = [await self._models.get(ref) for ref in self._models.chain(config, role="light")]
        asked = [model for model in asked if model.ref != OFFLINE]
        if not asked:
            raise NoModel("no model is connected; add a provider to config.json")
        policy = RetryPolicy.of(config.running.retry)
        finished = await complete(asked, Prompt(system, [user_message(question)]), policy=policy, clock=self._clock)
        facts = {"purpose": purpose, "model": str(asked[0].ref), "usage": finished.usage.model_dump()}
        self._bus.publish("model.used", agent_id=self._agent_id, **facts)
        return finished.message.text
