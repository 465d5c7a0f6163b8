"""Scripts that let a shell complete commands, flags, and names of methods, recipes and studies."""

from collections.abc import Mapping, Sequence

Words = Mapping[str, Sequence[str]]


def build_script(shell: str, flags: Words, values: Words) -> str:
    """Build the script of a shell: bash, zsh or fish.

    `flags` are those of each command; `values` are the words that may follow a flag or a command.
    Everything else is completed as the name of a file.
    """
    return _fish(flags, values) if shell == "fish" else _bash(flags, values, zsh=shell == "zsh")


def _bash(flags: Words, values: Words, *, zsh: bool) -> str:
    of_commands = "\n".join(
        f'            {name}) words="{" ".join(words)}" ;;' for name, words in flags.items()
    )
    after = "\n".join(
        f'            {word}) words="{" ".join(words)}" ;;' for word, words in values.items()
    )
    start = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{start}_selfsight() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{" ".join(flags)}"
    elif [ "${{current#-}}" != "$current" ]; then
        case ${{COMP_WORDS[1]}} in
{of_commands}
        esac
    else
        case $previous in
{after}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _selfsight selfsight
"""


def _fish(flags: Words, values: Words) -> str:
    lines = [f'complete -c selfsight -n __fish_use_subcommand -f -a "{" ".join(flags)}"']
    for name, words in flags.items():
        seen = f'complete -c selfsight -n "__fish_seen_subcommand_from {name}"'
        if name in values:
            lines.append(f'{seen} -a "{" ".join(values[name])}"')
        for flag in words:
            choices = f' -x -a "{" ".join(values[flag])}"' if flag in values else ""
            lines.append(f"{seen} -l {flag.removeprefix('--')}{choices}")
    return "\n".join(lines) + "\n"
