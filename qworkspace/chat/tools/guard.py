"""The approval policy: whether a call runs, waits for a person, or is refused. Pure, but for the tools' own reviews."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from qworkspace.config.models import AgentConfig, PolicyRule, ToolConfig
from qworkspace.errors import QworkspaceError
from qworkspace.plugins.extensions import Decision, Tool, ToolContext, Verdict

__all__ = ["Verdict", "by_policy", "decide", "enabled", "remembered", "rule_for", "stricter"]

Policy = Decision | list[PolicyRule]
_STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}


def enabled(tool: Tool, config: AgentConfig) -> bool:
    """Whether the agent has the tool at all."""
    settings = config.tools.get(tool.name)
    return settings is None or settings.enabled


def decide(tool: Tool, args: Any, config: AgentConfig, context: ToolContext) -> Verdict:
    """What happens to the call: the strictest of the tool's own review and the configured policy.

    A review that denies is the hard list: no setting opens it. One that asks is not lowered by a setting either.
    """
    if not enabled(tool, config):
        return Verdict("deny", f"{tool.name} is switched off")
    try:
        review = _reviewed(tool, args, context)
        if review.hard:
            return review
        target = tool.target(args)
        touched = tool.targets(args, context) if tool.targets is not None else [target]
    except QworkspaceError as error:
        return Verdict("deny", error.message, hard=True)
    return stricter(review, by_policy(tool, config.tools.get(tool.name), target, touched))


def by_policy(tool: Tool, settings: ToolConfig | None, target: str, touched: list[str] | None) -> Verdict:
    """The configured decision for a target and what it touches (None: nobody can tell), else the tool's default."""
    default = Verdict(tool.default, f"{tool.name}: {tool.default} unless configured otherwise")
    policy = settings.policy if settings is not None else None
    if policy is None:
        return default
    if isinstance(policy, str):
        return Verdict(policy, f"the policy of {tool.name} is {policy!r}")
    return _by_rules(policy, target, touched, default)


def rule_for(tool: Tool, args: Any, context: ToolContext) -> PolicyRule | None:
    """The rule that would allow such calls from now on; None when no rule can, because the tool's review asks."""
    if _reviewed(tool, args, context).decision != "allow":
        return None
    target = tool.target(args)
    if tool.effect == "network" and (url := urlsplit(target)).netloc:
        return PolicyRule(pattern=f"{glob.escape(f'{url.scheme}://{url.netloc}')}/*", decision="allow")
    return PolicyRule(pattern=glob.escape(target), decision="allow")


def remembered(policy: Policy | None, rule: PolicyRule) -> list[PolicyRule]:
    """The policy with `rule` before all others, once."""
    if policy is None:
        return [rule]
    rules = [PolicyRule(decision=policy)] if isinstance(policy, str) else policy
    return [rule, *(other for other in rules if other != rule)]


def stricter(one: Verdict, other: Verdict) -> Verdict:
    """The one that allows less; the first when they agree."""
    return other if _STRICTNESS[other.decision] > _STRICTNESS[one.decision] else one


def _reviewed(tool: Tool, args: Any, context: ToolContext) -> Verdict:
    if tool.review is None:
        return Verdict("allow", f"{tool.name} has no objection")
    found = tool.review(args, context)
    if isinstance(found, Verdict):
        return found
    return Verdict(found, f"{tool.name} always says {found!r} here", hard=found == "deny")


def _by_rules(rules: list[PolicyRule], target: str, touched: list[str] | None, default: Verdict) -> Verdict:
    """The strictest decision for what is touched; a rule that names exactly this target goes before all."""
    whole = _first(rules, target)
    if whole is not None and whole.pattern == glob.escape(target):
        return _says(whole)
    if touched is None:
        open_to_all = whole is not None and all(rule.decision == "allow" for rule in rules) and whole.pattern == "*"
        unclear = Verdict("ask", "the call is too intricate to be matched with the rules")
        return _says(whole) if whole is not None and open_to_all else _strictest([unclear, *_unless_lenient(whole)])
    found = [_first(rules, piece) for piece in touched or [target]]
    verdicts = [_says(rule) if rule is not None else default for rule in found]
    return _strictest([*verdicts, *_unless_lenient(whole)])


def _first(rules: Iterable[PolicyRule], target: str) -> PolicyRule | None:
    return next((rule for rule in rules if fnmatchcase(target, rule.pattern)), None)


def _unless_lenient(rule: PolicyRule | None) -> list[Verdict]:
    return [_says(rule)] if rule is not None and rule.decision != "allow" else []


def _says(rule: PolicyRule) -> Verdict:
    return Verdict(rule.decision, f"the rule for {rule.pattern!r} says {rule.decision!r}")


def _strictest(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: _STRICTNESS[verdict.decision])
