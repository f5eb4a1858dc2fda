"""`python -m keras_bert doctor | bench`: what this installation is, and what it can do."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from keras_bert import recipe

# A command is the module of its name.
COMMANDS = {
    "doctor": "what's installed, what doesn't go together, how fast this machine trains",
    "bench": "how fast a checkpoint trains here, and the largest batch that fits",
}
USAGE = "\n".join(
    (
        "usage: python -m keras_bert COMMAND [--help]",
        "",
        *(f"  {name:8}{does}" for name, does in COMMANDS.items()),
    )
)


def main() -> None:
    """Runs the command that the first argument names."""
    name, *flags = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
        return
    if name not in COMMANDS:
        print(f"error: there's no command {name}.\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    command = importlib.import_module(f"keras_bert.{name}")
    if importlib.util.find_spec("tyro") is None:
        if name == "doctor" and set(flags) <= {"--json"}:  # it's for incomplete installations, too
            command.main(command.Args(json="--json" in flags))
        print("error: this needs tyro: run `pip install 'keras3-bert[recipes]'`.", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"python -m keras_bert {name}", *flags]
    recipe.run(command.main, command.Args)


if __name__ == "__main__":
    main()
