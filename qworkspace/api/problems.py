"""Problems as the interface shows them."""

from __future__ import annotations

from qworkspace.api.basic_schemas import ProblemFacts
from qworkspace.base.problems import Problem


def problem_facts(problem: Problem) -> ProblemFacts:
    """A problem as the interface shows it."""
    return ProblemFacts(
        key=problem.key,
        severity=problem.severity,
        message=problem.message,
        agent_id=problem.agent_id,
        since=problem.since,
    )


def bare_facts(problem: Problem) -> ProblemFacts:
    """What a stranger may know of a problem: that there is one."""
    return ProblemFacts(key=problem.key.partition(":")[0], severity=problem.severity, since=problem.since)
