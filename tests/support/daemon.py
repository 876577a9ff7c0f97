"""A real daemon process on the loopback, with a home of its own: start, ask, kill, restart, end.

    with DaemonProcess(tmp_path / "home") as daemon:       # the offline provider, nothing configured
        daemon.chat("hello")
        daemon.kill()
        daemon.start()

`write_home(home, models=server.url)` gives it a scripted model server first. Everything here is synchronous: use
`asyncio.to_thread` in an async test, or `daemon.async_client()`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from qworkspace.base.lock import read_holder

# `verify=False` below: there is no TLS on the loopback, and loading certificates takes 50 ms per client
START_SECONDS = 30.0
STOP_SECONDS = 20.0


def write_home(
    home: Path,
    *,
    models: str | None = None,
    model: str = "scripted",
    agents: Sequence[str] = ("default",),
    agent: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    memory: bool = False,
) -> Path:
    """A home with these agents; `models` is the base URL of an OpenAI-compatible server, `agent` goes into each one's
    agent.json, `config` into config.json (top-level keys replace). The agents remember nothing unless `memory` is
    wanted, and then without vectors: half a second, and two seconds, of a processor for each daemon of a test."""
    profiles = {name: {"workspace_dir": f"workspaces/{name}", "enabled": True} for name in agents}
    whole: dict[str, Any] = {
        "agents": {"active_agent": agents[0], "profiles": profiles},
        "embedding": {"provider": "none"},
    }
    if models is not None:
        listed = [{"name": model, "context_window": 128_000}]
        whole["providers"] = {
            "scripted": {"type": "openai", "base_url": models, "api_key": "test-key", "models": listed}
        }
        whole["default_model"] = {"provider": "scripted", "name": model}
    write_json(home / "config.json", whole | dict(config or {}))
    for name in agents:
        about: dict[str, Any] = {"id": name, "name": name.title(), "description": "made by a test"} | dict(agent or {})
        if not memory:
            about["running"] = {"memory_manager_backend": "none"} | dict(about.get("running", {}))
        write_json(home / "workspaces" / name / "agent.json", about)
    return home


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


class DaemonProcess:
    """One home and, while started, the `qworkspace up` process that serves it."""

    def __init__(
        self,
        home: Path,
        *,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        port: int = 0,
        module: str = "qworkspace",
    ) -> None:
        self.home = home
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.output = home.parent / f"{home.name}.output"
        self._arguments = arguments
        self._module = module
        self._environ = dict(environ or {})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The home's access token, as the command line reads it."""
        override = self._environ.get("QWORKSPACE_TOKEN")
        if override:
            return override
        secrets = json.loads((self.home / "secrets.json").read_text(encoding="utf-8"))
        return str(secrets["access_token"])

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self, *, ready: bool = True) -> Self:
        """Run `qworkspace up` and wait until /healthz (and /readyz unless told otherwise) answers."""
        assert self.process is None, "already started"
        command = [sys.executable, "-m", self._module, "up", "--home", str(self.home), "--port", str(self.port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environ(),
                start_new_session=os.name == "posix",
            )
        self._find_port()
        self.wait_for("/healthz")
        if ready:
            self.wait_for("/readyz")
        return self

    def environ(self) -> dict[str, str]:
        """What the daemon and the command line run with: no key and no home of the person who tests."""
        return {**os.environ, "HOME": str(self.home.parent), "PYTHONUNBUFFERED": "1", **self._environ}

    def wait_for(self, path: str, seconds: float = START_SECONDS) -> httpx.Response:
        """The first 200 of `path`; fails with the daemon's own output when it ends or takes too long."""
        end = time.monotonic() + seconds
        last: object = "no answer"
        while time.monotonic() < end:
            self._must_live()
            try:
                answer = httpx.get(self.url + path, timeout=5, verify=False)
                if answer.status_code == 200:
                    return answer
                last = answer.text
            except httpx.TransportError as error:
                last = error
            time.sleep(0.02)
        raise AssertionError(f"{path} did not become ready in {seconds} s: {last!r}\n{self.text()}")

    def client(self, *, token: bool = True, timeout: float = 30.0) -> httpx.Client:
        """A client with the access token; close it."""
        return httpx.Client(base_url=self.url, headers=self._headers(token), timeout=timeout, verify=False)

    def async_client(self, *, token: bool = True, timeout: float = 30.0) -> httpx.AsyncClient:
        """The same for async tests; close it."""
        return httpx.AsyncClient(base_url=self.url, headers=self._headers(token), timeout=timeout, verify=False)

    def request(self, method: str, path: str, *, token: bool = True, **options: Any) -> httpx.Response:
        """One request with the access token."""
        with self.client(token=token) as client:
            return client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a GET that must succeed."""
        answer = self.request("GET", path, **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def chat(self, text: str, *, agent: str = "default", session: str = "s1", **more: Any) -> dict[str, Any]:
        """One turn without streaming; its JSON answer."""
        body = {"session_id": session, "message": text, "stream": False, **more}
        answer = self.request("POST", f"/api/agents/{agent}/chat", json=body)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text}\n{self.text()}"
        return dict(answer.json())

    def messages(self, *, agent: str = "default", session: str = "s1") -> list[dict[str, Any]]:
        """The stored messages of a session, oldest first."""
        return list(self.get(f"/api/agents/{agent}/sessions/{session}/messages")["messages"])

    def cli(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `qworkspace ARGUMENTS --home HOME`."""
        return subprocess.run(
            [sys.executable, "-m", "qworkspace", *arguments, "--home", str(self.home)],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environ(),
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the daemon."""
        assert self.process is not None, "not started"
        self.process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        assert self.process is not None, "not started"
        self.process.kill()
        self.process.wait()
        self.process = None

    def terminate(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, and the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended by itself."""
        assert self.process is not None, "not started"
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the daemon did not end in {seconds} s\n{self.text()}") from None
        self.process = None
        return code

    def restart(self) -> Self:
        """SIGTERM and start again on the same port."""
        self.terminate()
        return self.start()

    def close(self) -> None:
        """End it, however that is possible, with everything it started."""
        if self.process is None:
            return
        pid = self.process.pid
        try:
            self.terminate()
        finally:
            if os.name == "posix":
                _kill_group(pid)

    def text(self) -> str:
        """What the daemon has printed so far."""
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def said(self) -> str:
        """Everything that was printed or logged."""
        logs = sorted((self.home / ".daemon" / "log").glob("*"))
        return self.text() + "".join(path.read_text(encoding="utf-8") for path in logs)

    @contextmanager
    def unsurprised(self) -> Iterator[None]:
        """Whatever the block does, the daemon answers after it and has met nothing that it did not expect."""
        before = len(self.said())
        yield
        with self.client(token=False) as client:
            assert client.get("/healthz").status_code == 200
        new = self.said()[before:]
        assert "Traceback" not in new and "unexpected error" not in new, new

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log file."""
        path = self.home / ".daemon" / "log" / "qworkspace.log"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def _headers(self, token: bool) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if token else {}

    def _find_port(self) -> None:
        """Port 0 lets the system choose; the lock file tells which it was. It stays for later starts."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            self._must_live()
            holder = read_holder(self.home / ".daemon" / "lock")
            if holder is not None and holder.pid == self.pid and holder.address:
                self.port = int(holder.address.rpartition(":")[2])
                return
            time.sleep(0.01)
        raise AssertionError(f"the daemon did not tell its address\n{self.text()}")

    def _must_live(self) -> None:
        assert self.process is not None, "not started"
        code = self.process.poll()
        if code is not None:
            self.process = None
            raise AssertionError(f"the daemon ended with {code}\n{self.text()}")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
