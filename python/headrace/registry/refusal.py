"""What a registry answers instead of what it was asked for."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """A status of HTTP, and the code and message of Confluent's API."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
