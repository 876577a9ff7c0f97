"""The HTTP side over real stores, runners and agents; only what a turn says is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx
from starlette.types import ASGIApp, Message

from qworkspace.api.app import create_app
from qworkspace.api.auth import BROWSER_TABLE, Auth
from qworkspace.api.guard import Access
from qworkspace.api.services import Api, ApiServices, Info
from qworkspace.approvals import MIGRATIONS as APPROVAL_TABLES
from qworkspace.approvals import ApprovalStore
from qworkspace.base.clock import Clock, SystemClock
from qworkspace.base.database import Database
from qworkspace.base.events import EventBus
from qworkspace.base.metrics import PrometheusMetrics
from qworkspace.base.problems import Problems
from qworkspace.base.tasks import Threads
from qworkspace.chat.closing import Closer, Ending, error_facts
from qworkspace.chat.live import LiveTurn, StopReason
from qworkspace.chat.runner import TurnRunner
from qworkspace.config.store import ConfigStore
from qworkspace.errors import QworkspaceError
from qworkspace.inbox import MIGRATIONS as INBOX_TABLES
from qworkspace.inbox import InboxStore
from qworkspace.memory.parts import DaemonMemory
from qworkspace.sessions.models import Message as Said
from qworkspace.sessions.models import TextPart, TurnState, Usage
from qworkspace.sessions.store import SessionStore
from qworkspace.workspace.history import MIGRATIONS as RELOAD_TABLES
from qworkspace.workspace.history import ReloadHistory
from qworkspace.workspace.manager import MultiAgentManager
from qworkspace.workspace.registry import WorkspaceRegistry
from qworkspace.workspace.reload import Reloader
from qworkspace.workspace.services import ServiceDescriptor
from qworkspace.workspace.shared import SharedServices
from qworkspace.workspace.workspace import CHATS, SESSIONS, Workspace
from tests.support.daemon import write_home

HOST = "127.0.0.1:8420"
ENDS = ("turn.completed", "turn.failed", "turn.cancelled")
QUICK = replace(Access.of("127.0.0.1"), refusal_seconds=0)
INTERRUPTED, CANCELLED = TurnState.INTERRUPTED, TurnState.CANCELLED
Script = Callable[[LiveTurn], Awaitable[Ending]]


async def echo(live: LiveTurn) -> Ending:
    """Answer with what was said."""
    live.say(f"you said: {live.request.message.text}")
    return completed(live)


def completed(live: LiveTurn, usage: Usage | None = None) -> Ending:
    """The ending of a turn that said what it said."""
    usage = usage or Usage(input_tokens=11, output_tokens=7, requests=1)
    reply = Said(role="assistant", parts=(TextPart(text=live.text),))
    return Ending(TurnState.COMPLETED, text=live.text, usage=usage, reply=reply)


class Scripted:
    """Stands in for what carries out turns: `bench.script` says what happens in each."""

    def __init__(self, bench: ApiBench, workspace: Workspace) -> None:
        self._bench = bench
        self._workspace = workspace

    async def execute(self, live: LiveTurn) -> None:
        live.begun_at = self._bench.clock.monotonic()
        live.model = "scripted/model"
        await self._workspace.sessions.begin(live.id)
        live.emit("turn.started", {"session_id": live.session_id, "agent_id": self._workspace.agent_id})
        try:
            ending = await self._bench.script(live)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            ending = Ending(INTERRUPTED if live.stop_reason is StopReason.SHUTDOWN else CANCELLED, text=live.text)
        except QworkspaceError as error:
            ending = Ending(TurnState.FAILED, text=live.text, error=error_facts(error))
        await self._bench.closers[self._workspace.agent_id].close(live, ending)


class ApiBench:
    """A home with agents behind the HTTP side. `async with` opens and ends all of it."""

    def __init__(
        self,
        home: Path,
        agents: Sequence[str] = ("default", "other"),
        *,
        clock: Clock | None = None,
        console: Path | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.home = write_home(home, agents=agents, config=config, memory=True)
        self.clock = clock or SystemClock()
        self.script: Script = echo
        self.threads = Threads()
        self.bus = EventBus(self.clock)
        self.problems = Problems(self.clock, self.bus)
        self.config = ConfigStore(home, environ={})
        self.metrics = PrometheusMetrics(self.bus)
        tables = {
            "approvals": APPROVAL_TABLES,
            "browsers": (BROWSER_TABLE,),
            "inbox": INBOX_TABLES,
            "reloads": RELOAD_TABLES,
        }
        self.database = Database(home / ".daemon" / "home.db", migrations=tables, threads=self.threads)
        self.auth = Auth(self.database, token=self.config.secrets().token, clock=self.clock)
        self.approvals = ApprovalStore(self.database, clock=self.clock, bus=self.bus)
        self.inbox = InboxStore(self.database, clock=self.clock, bus=self.bus)
        self.closers: dict[str, Closer] = {}
        self.shutdowns: list[str] = []
        self.shared = SharedServices(
            clock=self.clock,
            threads=self.threads,
            bus=self.bus,
            problems=self.problems,
            config=self.config,
            models=cast(Any, None),
            approvals=self.approvals,
            inbox=self.inbox,
            memory=DaemonMemory(self.threads, self.clock, home),
            metrics=self.metrics,
        )
        self.registry = WorkspaceRegistry(self.shared, cast(Any, lambda workspace: Scripted(self, workspace)))
        self.registry.services.add(SESSIONS, self._sessions, owner="test")
        self.registry.services.add(CHATS, self._chats, owner="test")
        self.manager = MultiAgentManager(self.shared, self.registry)
        self.reloader = Reloader(self.manager, self.registry, self.shared, ReloadHistory(self.database))
        info = Info(version="1.2.3", started_at=self.clock.now(), home=home)
        self.api = Api(info, clock=self.clock, threads=self.threads, access=QUICK)
        self.app: ASGIApp = create_app(self.api, console=console) if console else create_app(self.api)

    async def __aenter__(self) -> Self:
        await self.threads.run(self.config.load_home)  # as the daemon does before it listens
        await self.database.open()
        await self.approvals.start()
        await self.auth.start()
        self.api.open(self.services())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.manager.stop(0)
        await self.reloader.stop()
        await self.approvals.stop()
        await self.database.close()
        self.bus.log.close()
        self.metrics.close()
        self.threads.close()

    def services(self) -> ApiServices:
        return ApiServices(
            manager=self.manager,
            config=self.config,
            bus=self.bus,
            problems=self.problems,
            approvals=self.approvals,
            auth=self.auth,
            metrics=self.metrics,
            shutdown=self.shutdowns.append,
            reloader=self.reloader,
            inbox=self.inbox,
        )

    @property
    def token(self) -> str:
        return self.config.secrets().token()

    def client(self, *, token: bool = True, **headers: str) -> httpx.AsyncClient:
        """A client of the application itself, without a server in between; streams come when they have ended."""
        if token:
            headers["authorization"] = f"Bearer {self.token}"
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers)

    async def ask(self, method: str, path: str, *, token: bool = True, **options: Any) -> httpx.Response:
        """One request."""
        async with self.client(token=token) as client:
            return await client.request(method, path, **options)

    def stream(self, method: str, path: str, *, body: Any = None, **headers: str) -> Listening:
        """One request whose answer is read as it comes."""
        content = b"" if body is None else json.dumps(body).encode()
        given = {"host": HOST, "authorization": f"Bearer {self.token}", "content-type": "application/json", **headers}
        return Listening(self.app, method, path, content, {k.replace("_", "-"): v for k, v in given.items()})

    def _sessions(self, workspace: Workspace) -> ServiceDescriptor:
        def make(_: object) -> SessionStore:
            return SessionStore(
                workspace.directory / ".state",
                clock=self.clock,
                threads=self.threads,
                problems=self.problems,
                agent_id=workspace.agent_id,
            )

        return ServiceDescriptor(SESSIONS, make, 10)

    def _chats(self, workspace: Workspace) -> ServiceDescriptor:
        def make(services: Any) -> TurnRunner:
            store = services.get(SESSIONS)
            closer = Closer(store, self.bus, self.clock, agent_id=workspace.agent_id)
            self.closers[workspace.agent_id] = closer
            return TurnRunner(
                store,
                workspace.current.execute,
                closer,
                agent_id=workspace.agent_id,
                clock=self.clock,
                interrupts=lambda request: False,
                queue_limit=lambda: 20,
            )

        return ServiceDescriptor(CHATS, make, 20, depends_on=(SESSIONS,))


@dataclass
class SseEvent:
    """One event of a stream."""

    id: str
    type: str
    data: dict[str, Any]


def parse_sse(text: str) -> list[SseEvent]:
    """The events of a stream; comments are passed over."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            data = json.loads(fields["data"]) if fields["data"].startswith("{") else {"raw": fields["data"]}
            found.append(SseEvent(fields.get("id", ""), fields.get("event", "message"), data))
    return found


@dataclass
class Listening:
    """A request to an ASGI application, read message by message; leaving the block is leaving the stream."""

    app: ASGIApp
    method: str
    path: str
    content: bytes
    headers: dict[str, str]
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open_gate.set()
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._left = asyncio.Event()
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in self.headers.items()],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8420),
        }
        self._task = asyncio.create_task(self._run(scope))
        start = await self._next()
        self.status = start["status"]
        self.answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        self.open_gate.set()
        assert self._task is not None
        await asyncio.wait({self._task})

    async def until(self, type: str) -> SseEvent:
        """Read on until an event of that type has come; that event."""
        while True:
            found = [event for event in self.events if event.type == type]
            if found:
                return found[-1]
            await self.piece()

    async def piece(self) -> str:
        """The next piece of the body; empty at the end."""
        body: str = (await self._next()).get("body", b"").decode()
        self.text += body
        return body

    async def rest(self) -> list[SseEvent]:
        """All events to the end."""
        while await self.piece():
            pass
        return self.events

    @property
    def events(self) -> list[SseEvent]:
        return parse_sse(self.text)

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def wait_end(self) -> None:
        assert self._task is not None
        await asyncio.wait({self._task}, timeout=5)

    async def _run(self, scope: dict[str, Any]) -> None:
        await self.app(scope, self._receive, self._send)

    async def _next(self) -> Message:
        getting = asyncio.ensure_future(self._sent.get())
        assert self._task is not None
        await asyncio.wait({getting, self._task}, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        if not getting.done():
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await getting
            self._task.result()
            raise AssertionError(f"nothing more came after {self.text!r}")
        return getting.result()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.open_gate.wait()
        self._sent.put_nowait(message)


@contextlib.asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The application on a real port, for clients that need one; its address."""
    import uvicorn

    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
