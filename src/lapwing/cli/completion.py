"""lapwing completion: teach the shell to complete commands, options, topics and channels."""

from typing import Annotated

from lapwing.cli.commands import SCRIPTS, Argument, command


@command(example='lapwing completion bash > ~/.local/share/bash-completion/completions/lapwing')
def app(shell: Annotated[str, Argument(choices=tuple(SCRIPTS), help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options, topics and channels in your shell.

    The first line of the script names its place. Topics and channels are those of the cluster that the
    environment or the current context names.
    """
    print(SCRIPTS[shell], end="")
