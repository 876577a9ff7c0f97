"""`qworkspace models …`: which models there are, and whether one answers. Works without the daemon."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any

import typer

from qworkspace.cli.output import HomeOption, JsonOption, print_json, print_table, print_text
from qworkspace.cli.up import home_directory
from qworkspace.config.home import HomeConfig
from qworkspace.config.models import ModelRef
from qworkspace.config.store import ConfigStore
from qworkspace.errors import InvalidInput, ModelError

QUESTION = "Answer with the one word: ready"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="The models.", no_args_is_help=True)
    group.command("list")(list_models)
    group.command("test")(test)
    app.add_typer(group, name="models")


def list_models(
    detect: Annotated[bool, typer.Option("--detect", help="Look for Ollama and llama.cpp on this machine.")] = False,
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """The configured models, and what could be connected."""
    config = ConfigStore(home_directory(home), environ=os.environ).load_home()
    models = _configured(config)
    nearby = _nearby() if detect else []
    if as_json:
        print_json({"models": models, "nearby": nearby})
        return
    headings = ("model", "type", "window", "vision", "default", "ready")
    print_table(headings, ([model[heading] for heading in headings] for model in models))
    for found in nearby:
        print_text(f"\nfound {found['title']} at {found['base_url']}: {', '.join(found['models']) or 'no models yet'}")
    if detect and not nearby:
        print("\nneither Ollama nor llama.cpp answers on this machine")


def test(
    model: Annotated[str, typer.Argument(metavar="[PROVIDER/NAME]", help="Default: the default model.")] = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a model one short question: does it answer, how fast, does it take the key."""
    config = ConfigStore(home_directory(home), environ=os.environ).load_home()
    chosen = _named(model) if model else config.default_model
    if chosen is None:
        raise InvalidInput("no model is named, and config.json has no default_model")
    facts = asyncio.run(_try(config, chosen))
    if as_json:
        print_json(facts)
    elif facts["ok"]:
        print_text(f"{chosen}: answers ({facts['first_token_ms']} ms to the first word): {facts['text']}")
    else:
        print_text(f"{chosen}: {facts['error']}")
    if not facts["ok"]:
        raise typer.Exit(1)


def _named(model: str) -> ModelRef:
    try:
        return ModelRef.parse(model)
    except ValueError:
        raise typer.BadParameter(f"{model!r} is not of the form PROVIDER/NAME", param_hint="model") from None


async def _try(config: HomeConfig, ref: ModelRef) -> dict[str, Any]:
    from qworkspace.chat.models import ModelSource  # the model library is heavy and only this command needs it
    from qworkspace.chat.wire import Prompt, TextDelta
    from qworkspace.sessions.models import user_message

    source = ModelSource(lambda: config)
    began, first, text = time.monotonic(), None, ""
    try:
        found = await source.get(ref)
        async for event in found.stream(Prompt("", [user_message(QUESTION)], settings={"max_tokens": 200})):
            if isinstance(event, TextDelta) and event.text:
                first = first or time.monotonic()
                text += event.text
    except ModelError as error:
        return {"model": str(ref), "ok": False, "error": error.message, "code": error.code}
    finally:
        await source.close()
    elapsed = round(((first or time.monotonic()) - began) * 1000)
    return {"model": str(ref), "ok": bool(text), "text": text.strip()[:200], "first_token_ms": elapsed}


def _configured(config: HomeConfig) -> list[dict[str, Any]]:
    default = str(config.default_model) if config.default_model is not None else ""
    return [
        {
            "model": f"{name}/{model.name}",
            "type": provider.type,
            "window": model.context_window,
            "vision": model.vision,
            "default": f"{name}/{model.name}" == default,
            "ready": not provider.missing_variables(),
        }
        for name, provider in config.providers.items()
        for model in provider.models
    ]


def _nearby() -> list[dict[str, Any]]:
    from qworkspace.chat.detect import detect_local  # asks over the network, only when told to

    return [
        {"title": found.title, "base_url": found.base_url, "models": list(found.models)}
        for found in asyncio.run(detect_local())
    ]
