"""Record every API call of a world with its status, and keep its path parameters inside the path."""

from __future__ import annotations

from typing import Any

from environments.appworld.engine.protocol import as_json

_NOT_THE_AGENTS = frozenset({"client", "track", "show"})  # parameters of the package's own requester
_LEAVES_THE_PATH = frozenset("/\\?#%")


class ApiCallRecorder:
    """Wrap the client of a world's requester.

    The package puts a path parameter's text into the address as it is: one with slashes could reach another app's
    private APIs. Such a call is answered like an API that does not exist. Arguments become JSON values before they are
    read, so that a value cannot change between its check and its use.
    """

    def __init__(self, requester: Any) -> None:  # noqa: ANN401 - the package has no types
        self._calls: list[dict[str, Any]] = []
        self._request = requester.request
        self._check = requester.raise_if_failure
        requester.request = self._recorded
        requester.raise_if_failure = self._checked

    def take(self) -> list[dict[str, Any]]:
        """Return the calls since the last time: app, api, arguments, and the answer's HTTP status (None: no answer)."""
        calls, self._calls = self._calls, []
        return calls

    def _recorded(self, _app_name: str, _api_name: str, **data: Any) -> Any:  # noqa: ANN401
        if data.get("track") is False and not _given(data):  # the engine's own read of the task
            return self._request(_app_name, _api_name, track=False)
        raises = data.pop("raise_on_failure", None)
        given = _plain(data)
        self._calls.append({"app": _app_name, "api": _api_name, "arguments": given, "status": None})
        refused = _NOT_THE_AGENTS & set(data)
        if refused:
            raise Exception(f"Unexpected parameter: {', '.join(sorted(refused))}.")
        _keep_in_path(_app_name, _api_name, given)
        return self._request(_app_name, _api_name, raise_on_failure=None if raises is None else bool(raises), **given)

    def _checked(self, response: Any, raise_on_failure: bool | None = None) -> None:  # noqa: ANN401
        if self._calls:
            self._calls[-1]["status"] = response.status_code
        self._check(response, raise_on_failure)


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments to JSON values once: the same values are checked, sent and recorded."""
    given = {}
    for name, value in data.items():
        try:
            given[name] = as_json(value)
        except ValueError as error:
            raise Exception(f"The parameter {name} must be a JSON value: {error}.") from None
    return given


def _given(data: dict[str, Any]) -> bool:
    return bool(set(data) - {"track"})


def _keep_in_path(app: str, api: str, data: dict[str, Any]) -> None:
    from appworld.requester import METHOD_NOT_ALLOWED_MESSAGE, _get_api_name_to_doc

    path = _get_api_name_to_doc(app, include_private_apis=True)[api]["path"]
    for name, value in data.items():
        text = str(value)
        if "{" + name + "}" in path and (_LEAVES_THE_PATH & set(text) or text.strip(".") == ""):
            raise Exception(f"Response status code is 404:\n{METHOD_NOT_ALLOWED_MESSAGE}")
