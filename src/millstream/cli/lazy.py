"""A command group that imports a command's module when the command is used, not before.

`millstream --help` must answer at once, and a broker must start in a fraction of a second, so no
command pays for the imports of another. The one-line help of each command stands in the table, so
that listing commands imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """`commands_by_name` maps a name to ("module:attribute", one-line help)."""

    def __init__(self, *args: Any, commands_by_name: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands_by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_by_name:
            return None
        module, _, attribute = self.commands_by_name[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise _with_proposal(error, args[0] if args else "", list(self.commands_by_name)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.commands_by_name.items()])


def _with_proposal(error: click.UsageError, given: str, known: list[str]) -> click.UsageError:
    from difflib import get_close_matches

    near = get_close_matches(given, known, n=1)
    if near and "Did you mean" not in error.message:
        return click.UsageError(f"{error.message} Did you mean {near[0]!r}?", error.ctx)
    return error
