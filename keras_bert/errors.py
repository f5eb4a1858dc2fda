"""The one exception that stands for a mistake in what the user handed in."""


class InputError(ValueError):
    """A file, a flag or a folder isn't what it must be.

    The message is one sentence that names the file, the line and the value, and
    says what to do. Recipes print it and exit with code 2; everything else that is
    raised is a fault of the code and keeps its traceback.
    """
