"""Futures that get a result or an error, unless they were cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future


def resolve(future: Future[Any], value: Any) -> None:
    """Give a future its result, unless it was cancelled or has one."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(value)


def reject(future: Future[Any], error: BaseException) -> None:
    """Give a future its error, unless it was cancelled or is done."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
