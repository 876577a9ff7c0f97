"""Who may come in: pairing a browser, the list of paired ones, a new access token."""

from __future__ import annotations

from dataclasses import asdict

from starlette.types import ASGIApp

from qworkspace.api.admin_schemas import BrowserFacts, BrowserList, PairBody, PairingFacts, RotateBody, Rotated
from qworkspace.api.auth import COOKIE_SECONDS, cookie_name
from qworkspace.api.operations import Call, Operation, json_answer, no_content
from qworkspace.errors import Conflict


async def new_code(call: Call) -> PairingFacts:
    """A one-time code for the console's link."""
    call.need_token()
    pairing = call.services.auth.new_code()
    link = f"{call.request.url.scheme}://{call.request.headers['host']}/#pair={pairing.code}"
    return PairingFacts(code=pairing.code, expires_at=pairing.expires_at, link=link)


async def pair(call: Call) -> ASGIApp:
    """Take a code, answer with the cookie that opens the console in this browser from now on."""
    request = call.request
    name = call.body.name or request.headers.get("user-agent", "")
    browser, secret = await call.services.auth.pair(call.body.code, name=name)
    answer = json_answer(BrowserFacts(**asdict(browser), current=True))
    port = request.scope["server"][1] or 0
    answer.set_cookie(
        cookie_name(port),
        secret,
        max_age=COOKIE_SECONDS,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


async def list_browsers(call: Call) -> BrowserList:
    """The paired browsers, the one used last first."""
    here = call.caller.browser_id
    browsers = call.services.auth.browsers()
    return BrowserList(browsers=[BrowserFacts(**asdict(known), current=known.id == here) for known in browsers])


async def revoke(call: Call) -> ASGIApp:
    """That browser has to be paired again."""
    await call.services.auth.revoke(call.param("browser_id"))
    return no_content()


async def rotate(call: Call) -> Rotated:
    """A new access token; it is not in the answer, but in secrets.json (`qworkspace token show`)."""
    call.need_token()
    secrets = call.services.config.secrets()
    token = await call.api.threads.run(secrets.rotate_token)
    if secrets.token() != token:
        raise Conflict("the access token in use comes from $QWORKSPACE_TOKEN; change it there and start again")
    revoked = await call.services.auth.revoke_all() if call.body.revoke_browsers else 0
    call.services.bus.publish("access.token_rotated", browsers_revoked=revoked)
    return Rotated(rotated=True, browsers_revoked=revoked)


OPERATIONS = (
    Operation("POST", "/api/pairing", new_code, "A one-time pairing code (token only)", "access", answer=PairingFacts),
    Operation(
        "POST",
        "/api/pair",
        pair,
        "Pair this browser with a one-time code",
        "access",
        body=PairBody,
        answer=BrowserFacts,
        public=True,
    ),
    Operation("GET", "/api/browsers", list_browsers, "Paired browsers", "access", answer=BrowserList),
    Operation("DELETE", "/api/browsers/{browser_id}", revoke, "Revoke a browser", "access", status=204),
    Operation(
        "POST",
        "/api/token/rotate",
        rotate,
        "Make a new access token (token only)",
        "access",
        body=RotateBody,
        answer=Rotated,
    ),
)
