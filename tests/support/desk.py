"""A world in which a value has to be looked up: orders by name, which are cancelled by number."""

from __future__ import annotations

from typing import Annotated

from environments.python_class.environment import PythonEnvironment


class Desk:
    """Orders are found by name, and cancelled by number."""

    def __init__(self, orders: dict[str, int]) -> None:
        self.orders = orders

    def find_order(
        self, name: Annotated[str, "name of the customer"], limit: Annotated[int, "most orders"] = 10
    ) -> dict[str, int]:
        """Find the order of a customer."""
        return {"order_id": self.orders[name]}

    def cancel_order(self, order_id: Annotated[int, "id of the order"]) -> str:
        """Cancel an order."""
        self.orders = {name: number for name, number in self.orders.items() if number != order_id}
        return "cancelled"


DESK = PythonEnvironment("desk", Desk, [{"orders": {"Ana": 4711, "Bo": 4712}}])
