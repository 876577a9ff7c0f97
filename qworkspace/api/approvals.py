"""What agents ask before they do it, and the answers of people."""

from __future__ import annotations

from qworkspace.api.admin_schemas import ApprovalBody, ApprovalFacts, ApprovalList, ApprovalsQuery
from qworkspace.api.operations import Call, Operation


async def list_approvals(call: Call) -> ApprovalList:
    """What waits for an answer, or all of it; the newest first."""
    query = call.query
    found = await call.services.approvals.list("pending" if query.state == "pending" else None)
    found.sort(key=lambda one: one.id, reverse=True)
    rest = [one for one in found if query.cursor is None or one.id < query.cursor]
    page = rest[: query.limit]
    return ApprovalList(
        approvals=[ApprovalFacts.model_validate(one) for one in page],
        next_cursor=page[-1].id if len(rest) > len(page) else None,
    )


async def read_approval(call: Call) -> ApprovalFacts:
    """One of them."""
    return ApprovalFacts.model_validate(await call.services.approvals.get(call.param("approval_id")))


async def answer(call: Call) -> ApprovalFacts:
    """Allow or refuse; an interrupted turn goes on with the answer."""
    body: ApprovalBody = call.body
    by = f"browser {call.caller.browser_id}" if call.caller.kind == "browser" else "token"
    answered = await call.services.approvals.answer(
        call.param("approval_id"), body.decision, by=by, remember=body.remember
    )
    return ApprovalFacts.model_validate(answered)


OPERATIONS = (
    Operation(
        "GET",
        "/api/approvals",
        list_approvals,
        "What agents ask",
        "approvals",
        query=ApprovalsQuery,
        answer=ApprovalList,
    ),
    Operation("GET", "/api/approvals/{approval_id}", read_approval, "One approval", "approvals", answer=ApprovalFacts),
    Operation(
        "POST",
        "/api/approvals/{approval_id}",
        answer,
        "Allow or refuse",
        "approvals",
        body=ApprovalBody,
        answer=ApprovalFacts,
    ),
)
