"""Every error a user can meet. One sentence each: what, what was found, what is needed, what to do."""


class TspecError(Exception):
    """Base of all tspec errors. Reads `{what}: got {got}, need {need}. {fix}`."""

    def __init__(self, what: str, *, got: object, need: object, fix: str) -> None:
        super().__init__(f"{what}: got {got}, need {need}. {fix}")
        self.what = what


class ConfigError(TspecError):
    """A parameter or an option is impossible, unknown or contradicts another."""


class CheckpointError(TspecError):
    """A checkpoint folder, one of its files or one of its tensors is not what it has to be."""


class ShapeError(TspecError):
    """A value in a graph has another shape or dtype than its op demands."""


class ContractError(TspecError):
    """A kernel was handed operands outside its contract."""


class CapacityError(TspecError):
    """Something does not fit: a prompt in the context, a sequence in the KV blocks, a tree in a bucket."""


class CaptureError(TspecError):
    """A plan cannot be captured, or was replayed in a way its capture does not allow."""
