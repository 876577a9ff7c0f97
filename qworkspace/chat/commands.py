"""The built-in slash commands. They reach the conversation only through `TurnContext.controls`."""

from __future__ import annotations

from typing import Any

from qworkspace.chat.modes import modes_of
from qworkspace.errors import NotFound
from qworkspace.plugins.extensions import Extensions, SlashCommand, TurnContext

OWNER = "builtin"


def install(extensions: Extensions) -> None:
    """Register the built-in commands of a workspace."""
    for command in COMMANDS:
        extensions.commands.add(command.name, command, owner=OWNER)


async def _help(context: TurnContext, rest: str) -> str:
    name = rest.removeprefix("/").split(maxsplit=1)[0] if rest else ""
    if name:
        command = context.extensions.commands.find(name)
        if command is None:
            return _say(context, "unknown_command", name=name)
        return f"{_shape(command)}\n\n{_summary(context, command)}"
    commands = sorted(context.extensions.commands.values(), key=lambda command: command.name)
    lines = [f"- {_shape(command)} — {_summary(context, command)}" for command in commands]
    return "\n".join([_say(context, "commands"), "", *lines])


async def _new(context: TurnContext, rest: str) -> str:
    await context.controls.start_afresh(context.request.session_id)
    return _say(context, "afresh")


async def _stop(context: TurnContext, rest: str) -> str:
    stopped = await context.controls.stop(context.request.session_id)
    return _say(context, "stopped" if stopped else "nothing_runs")


async def _compact(context: TurnContext, rest: str) -> str:
    return await context.controls.compact(context.request.session_id)


async def _status(context: TurnContext, rest: str) -> str:
    facts = await context.controls.status(context.request.session_id)
    return "\n".join(f"- {_label(name)}: {_value(value)}" for name, value in facts.items() if value not in (None, []))


async def _model(context: TurnContext, rest: str) -> str:
    if not rest:
        return await _models(context)
    chosen = None if rest in ("default", "-") else rest
    return _say(context, "model", name=await context.controls.choose_model(context.request.session_id, chosen))


async def _models(context: TurnContext) -> str:
    facts = await context.controls.status(context.request.session_id)
    current = str(facts.get("model", ""))
    names = sorted({*context.controls.model_names(), current} - {""})
    lines = [f"- `{name}`" + (_say(context, "in_use") if name == current else "") for name in names]
    return "\n".join([_say(context, "models"), "", *lines]) if lines else _say(context, "no_model")


async def _mode(context: TurnContext, rest: str) -> str:
    if not rest:
        return await _modes(context)
    chosen = None if rest in ("default", "-") else rest
    mode = await context.controls.choose_mode(context.request.session_id, chosen)
    return _say(context, "mode", name=mode) if mode is not None else _say(context, "mode_left")


async def _modes(context: TurnContext) -> str:
    current = (await context.controls.status(context.request.session_id)).get("mode")
    lines = [
        f"- `{mode.name}`"
        + (f" — {mode.summary}" if mode.summary else "")
        + (_say(context, "in_use") if mode.name == current else "")
        for mode in modes_of(context.config, context.extensions).values()
    ]
    return "\n".join([_say(context, "modes"), "", *lines]) if lines else _say(context, "no_mode")


async def _resume(context: TurnContext, rest: str) -> str:
    try:
        turn_id = await context.controls.resume(context.request.session_id, rest or None)
    except NotFound:
        if rest:
            raise
        return _say(context, "nothing_interrupted")
    return _say(context, "resumed", turn=turn_id)


COMMANDS = (
    SlashCommand("help", "List the commands, or explain one.", _help, usage="[command]"),
    SlashCommand("new", "Start afresh: what was said before is kept but no longer in view.", _new),
    SlashCommand("stop", "Stop the running answer and drop the waiting messages.", _stop),
    SlashCommand("compact", "Summarise the older part of this conversation now.", _compact),
    SlashCommand("status", "Show the agent, its model and this session.", _status),
    SlashCommand(
        "model", "Show the models, or choose one for this session.", _model, usage="[provider/name | default]"
    ),
    SlashCommand("mode", "Show the ways of working, or choose one for this session.", _mode, usage="[name | default]"),
    SlashCommand("resume", "Carry on an interrupted answer.", _resume, usage="[turn id]"),
)

_ENGLISH = {
    "commands": "Commands:",
    "unknown_command": "There is no command /{name}. /help lists all commands.",
    "afresh": "A fresh start. What was said before stays stored and is no longer in view.",
    "stopped": "Stopped.",
    "nothing_runs": "Nothing is running.",
    "model": "This session uses `{name}` from now on.",
    "models": "Models (`/model provider/name` chooses one for this session, `/model default` goes back):",
    "no_model": "No model is connected. Add a provider in the settings, or run `qworkspace doctor`.",
    "mode": "This session works in mode `{name}` from now on.",
    "mode_left": "This session works in no mode from now on.",
    "modes": "Modes (`/mode name` chooses one for this session, `/mode default` leaves it):",
    "no_mode": "This agent has no modes; `modes` in agent.json defines them.",
    "in_use": " (in use)",
    "nothing_interrupted": "No interrupted answer waits in this session.",
    "resumed": "Carrying on with turn `{turn}`.",
}
_CHINESE = {
    "commands": "命令：",
    "unknown_command": "没有 /{name} 这个命令。/help 可列出全部命令。",
    "afresh": "已重新开始。之前的对话仍然保存着，只是不再进入上下文。",
    "stopped": "已停止。",
    "nothing_runs": "当前没有正在运行的回复。",
    "model": "本会话从现在起使用 `{name}`。",
    "models": "模型（`/model provider/name` 为本会话选择，`/model default` 恢复默认）：",
    "no_model": "尚未连接模型。请在设置中添加提供方，或运行 `qworkspace doctor`。",
    "mode": "本会话从现在起使用模式 `{name}`。",
    "mode_left": "本会话不再使用任何模式。",
    "modes": "模式（`/mode 名称` 为本会话选择，`/mode default` 退出）：",
    "no_mode": "该智能体没有模式；可在 agent.json 的 `modes` 中定义。",
    "in_use": "（使用中）",
    "nothing_interrupted": "本会话没有被中断的回复。",
    "resumed": "正在继续第 `{turn}` 轮。",
}
_CHINESE_SUMMARIES = {
    "help": "列出命令，或说明其中一个。",
    "new": "重新开始：之前的内容保留，但不再进入上下文。",
    "stop": "停止正在进行的回复，并丢弃等待中的消息。",
    "compact": "立即总结本会话较早的部分。",
    "status": "显示智能体、所用模型和本会话。",
    "model": "列出模型，或为本会话选择一个。",
    "mode": "列出工作模式，或为本会话选择一个。",
    "resume": "继续被中断的回复。",
}


def _say(context: TurnContext, key: str, **values: str) -> str:
    texts = _CHINESE if _chinese(context) else _ENGLISH
    return texts[key].format(**values)


def _chinese(context: TurnContext) -> bool:
    return context.config.language == "zh"


def _summary(context: TurnContext, command: SlashCommand) -> str:
    if not _chinese(context) or command not in COMMANDS:
        return command.summary
    return _CHINESE_SUMMARIES.get(command.name, command.summary)


def _shape(command: SlashCommand) -> str:
    return f"`/{command.name} {command.usage}`" if command.usage else f"`/{command.name}`"


def _label(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
