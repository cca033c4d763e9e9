"""The one exception of this package. Standard library only: the `model` container imports it too."""


class OpsError(Exception):
    """An expected failure. `message` says what is wrong in one sentence, `fix` what to do about it.

    Raised anywhere, printed at one edge (`ops.cli.main`, `ops.fetch.__main__`), which exits with code 1.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
