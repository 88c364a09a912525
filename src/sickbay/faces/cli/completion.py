"""sickbay completion bash|zsh|fish."""

import sys

import click

HOW = {
    "bash": 'eval "$(sickbay completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(sickbay completion zsh)"    # in ~/.zshrc',
    "fish": "sickbay completion fish > ~/.config/fish/completions/sickbay.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(HOW)))
def completion(shell: str) -> None:
    """Print what makes your shell complete commands, options, and the names of nodes, jobs and incidents.

    \b
    eval "$(sickbay completion bash)"
    eval "$(sickbay completion zsh)"
    sickbay completion fish > ~/.config/fish/completions/sickbay.fish
    """
    from click.shell_completion import get_completion_class

    from sickbay.faces.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None  # the choice above has only those that click knows
    made = kind(main, {}, "sickbay", "_SICKBAY_COMPLETE")
    click.echo(made.source_template % made.source_vars())  # without asking which bash is installed here
    if sys.stdout.isatty():
        click.echo(f"# {HOW[shell]}", err=True)
