"""Errors of the cluster as a user of nsqadmin reads them: what happened, and what to do."""

from typing import Any, Final

from lapwing.admin.actions import Forbidden
from lapwing.client.admin_results import NodeResult, Results
from lapwing.client.cluster_client import NoSuchNode, UpstreamFailed
from lapwing.client.http import CallFailed
from lapwing.errors import LapwingError

_UNAUTHORIZED: Final = "UNAUTHORIZED"
_REASONS: Final = {
    "AUTH_REQUIRED": "it requires a secret: start nsqadmin with --auth-secret-file",
    "AUTH_FAILED": "it does not accept nsqadmin's secret (--auth-secret-file)",
    "AUTH_UNAVAILABLE": "its auth server gives no usable answer",
}


def failure_reason(error: CallFailed) -> str:
    """Return why a daemon did not do what it was asked for, without the request."""
    if error.code == _UNAUTHORIZED and isinstance(error.answer, dict):
        needed = error.answer.get("permission") or "a permission"
        return f"nsqadmin's secret lacks {needed} for it: the auth server has to grant it for the pattern .*"
    return _REASONS.get(error.code, error.reason)


def refusals(results: Results[Any]) -> list[str]:
    """Return why nodes did not do it, each with its name."""
    return [f"{result.node}: {refusal(result)}" for result in results if not result.done] + list(results.missing)


def refusal(result: NodeResult[Any]) -> str:
    """Return why a node did not do it."""
    failure = result.failure
    known = failure is not None and (failure.code in _REASONS or failure.code == _UNAUTHORIZED)
    return failure_reason(failure) if failure is not None and known else result.error


def error_text(error: LapwingError) -> str:
    """Return a sentence about an error for the page."""
    if isinstance(error, Forbidden):
        return "You may look, but not change anything here."
    if isinstance(error, NoSuchNode):
        return f"The node {error.node} is not known, or does not have this topic."
    if "TOPIC_NOT_FOUND" in str(error):
        return "This topic does not exist any more: somebody has deleted it."
    if isinstance(error, CallFailed):
        return f"The cluster refused or did not answer: {failure_reason(error)}"
    if isinstance(error, UpstreamFailed):
        return f"The cluster refused or did not answer: {error}"
    return str(error)
