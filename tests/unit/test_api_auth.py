"""Pairing: a code opens the door once, a cookie keeps it open for one browser, and both can be taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from qworkspace.base.clock import SimulatedClock
from qworkspace.config.secrets import TOKEN_VARIABLE, Secrets
from tests.support.api import HOST, ApiBench

OWN = {"origin": f"http://{HOST}"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ApiBench]:
    async with ApiBench(tmp_path / "home") as bench:
        yield bench


async def pair(bench: ApiBench, name: str = "my browser") -> httpx.Response:
    pairing = (await bench.ask("POST", "/api/pairing")).json()
    assert pairing["link"] == f"http://{HOST}/#pair={pairing['code']}"
    body = {"code": pairing["code"], "name": name}
    return await bench.ask("POST", "/api/pair", token=False, json=body, headers=OWN)


def cookie(answer: httpx.Response) -> dict[str, str]:
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def test_a_code_pairs_one_browser_once(bench: ApiBench) -> None:
    answer = await pair(bench)
    assert answer.status_code == 200
    header = answer.headers["set-cookie"]
    assert header.startswith("qworkspace_8420=")
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert attribute in header
    paired = await bench.ask("GET", "/api/browsers", token=False, headers=cookie(answer))
    assert [(one["name"], one["current"]) for one in paired.json()["browsers"]] == [("my browser", True)]


async def test_a_code_is_good_once_and_not_for_long(tmp_path: Path) -> None:
    clock = SimulatedClock()
    async with ApiBench(tmp_path / "home", clock=clock) as bench:
        code = bench.auth.new_code().code
        await clock.advance(601)
        for used in (code, "wrong", "x" * 200):
            late = await bench.ask("POST", "/api/pair", token=False, json={"code": used})
            assert (late.status_code, late.json()["error"]["code"]) == (403, "invalid_pairing_code")
        code = bench.auth.new_code().code
        assert (await bench.ask("POST", "/api/pair", token=False, json={"code": code})).status_code == 200
        assert (await bench.ask("POST", "/api/pair", token=False, json={"code": code})).status_code == 403


async def test_the_stored_pairing_opens_nothing_by_itself(bench: ApiBench) -> None:
    secret = cookie(await pair(bench))["cookie"].partition("=")[2]
    stored = await bench.database.read(lambda db: db.execute("SELECT * FROM browsers").fetchall())
    assert stored
    assert secret not in str(stored)


async def test_a_cookie_alone_changes_nothing_for_foreign_pages(bench: ApiBench) -> None:
    headers = cookie(await pair(bench))
    body = {"message": "hello", "stream": False}
    same = {**headers, "sec-fetch-site": "same-origin"}
    assert (await bench.ask("POST", "/console/chat", token=False, headers=same, json=body)).status_code == 200
    assert (await bench.ask("POST", "/console/chat", token=False, headers=headers | OWN, json=body)).status_code == 200
    assert (await bench.ask("POST", "/console/chat", token=False, headers=headers, json=body)).status_code == 403
    for site in ("cross-site", "same-site"):
        foreign = {**headers, "sec-fetch-site": site}
        for method, path in (("GET", "/api/status"), ("POST", "/console/chat")):
            assert (await bench.ask(method, path, token=False, headers=foreign, json=body)).status_code == 403


async def test_a_browser_may_not_do_what_needs_the_token(bench: ApiBench) -> None:
    headers = cookie(await pair(bench)) | OWN
    for path in ("/api/pairing", "/api/token/rotate", "/api/shutdown"):
        answer = await bench.ask("POST", path, token=False, headers=headers, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "token_needed")
    assert bench.shutdowns == []


async def test_a_revoked_browser_is_out_at_once_and_after_a_restart(bench: ApiBench, tmp_path: Path) -> None:
    kept, gone = await pair(bench, "kept"), await pair(bench, "gone")
    listed = (await bench.ask("GET", "/api/browsers")).json()["browsers"]
    id = next(one["id"] for one in listed if one["name"] == "gone")
    assert (await bench.ask("DELETE", f"/api/browsers/{id}")).status_code == 204
    assert (await bench.ask("DELETE", f"/api/browsers/{id}")).status_code == 404
    assert (await bench.ask("GET", "/api/status", token=False, headers=cookie(gone))).status_code == 401
    await bench.manager.stop(0)
    async with ApiBench(tmp_path / "home") as later:
        assert (await later.ask("GET", "/api/status", token=False, headers=cookie(gone))).status_code == 401
        assert (await later.ask("GET", "/api/status", token=False, headers=cookie(kept))).status_code == 200


async def test_a_browser_that_stays_away_for_half_a_year_is_forgotten(tmp_path: Path) -> None:
    clock = SimulatedClock()
    async with ApiBench(tmp_path / "home", clock=clock) as bench:
        paired = await pair(bench)
        for days in (100, 100):
            clock.jump(days * 86_400)
            assert (await bench.ask("GET", "/api/status", token=False, headers=cookie(paired))).status_code == 200
        clock.jump(181 * 86_400)
        assert bench.auth.browsers()
        caller = await bench.auth.identify(Headers(cookie(paired)), port=8420)
        assert caller.kind == "nobody"
        assert not bench.auth.browsers()


async def test_a_wrong_token_is_nobody_even_beside_a_good_cookie(bench: ApiBench) -> None:
    headers = cookie(await pair(bench)) | {"authorization": "Bearer wrong"}
    assert (await bench.ask("GET", "/api/status", token=False, headers=headers)).status_code == 401


async def test_rotation_closes_the_old_token(bench: ApiBench) -> None:
    old = {"authorization": f"Bearer {bench.token}"}
    paired = await pair(bench)
    answer = await bench.ask("POST", "/api/token/rotate", json={"revoke_browsers": True})
    assert answer.json() == {"rotated": True, "browsers_revoked": 1}
    assert bench.token not in answer.text
    assert (await bench.ask("GET", "/api/status", token=False, headers=old)).status_code == 401
    assert (await bench.ask("GET", "/api/status", token=False, headers=cookie(paired))).status_code == 401
    assert (await bench.ask("GET", "/api/status")).status_code == 200


async def test_a_token_from_the_environment_is_rotated_there(bench: ApiBench, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets(bench.home / "secrets.json", environ={TOKEN_VARIABLE: "given"})
    monkeypatch.setattr(bench.config, "secrets", lambda: secrets)
    bench.auth._token = secrets.token
    answer = await bench.ask("POST", "/api/token/rotate", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert TOKEN_VARIABLE in answer.json()["error"]["message"]


async def test_shutdown_needs_the_token_and_is_passed_on(bench: ApiBench) -> None:
    assert (await bench.ask("POST", "/api/shutdown", token=False)).status_code == 401
    assert (await bench.ask("POST", "/api/shutdown")).status_code == 202
    assert bench.shutdowns == ["asked over HTTP"]
