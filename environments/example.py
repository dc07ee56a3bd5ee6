"""Define a complete environment in one file: a parcel depot (docs/own-environment.md).

Copy it, change the class and the start states, and hold the result to the contract: ``coevolve environment check``.
"""

import random
from typing import Annotated, Literal

from environments.python_class.environment import PythonEnvironment, ToolRefused

Label = Annotated[str, "label of the parcel"]
Van = Annotated[Literal["north", "south"], "the van"]
Euros = Annotated[int, "value in euros, between 100 and 500 and a multiple of 100"]
LABELS = ("books", "lamp", "mirror", "piano stool", "red crate", "seeds", "tools", "toys", "vase", "wine")


class Depot:
    """Parcels are insured, loaded into one of two vans and sent off through a gate."""

    def __init__(self, parcels: dict[str, dict[str, int]], gate_open: bool) -> None:
        self.parcels = {label: {"kilograms": parcel["kilograms"], "euros": 0} for label, parcel in parcels.items()}
        self.vans: dict[str, list[str]] = {"north": [], "south": []}
        self.gate_open = gate_open

    def list_parcels(self) -> list[str]:
        """List what waits in the depot."""
        return sorted(self.parcels.keys() - {*self.vans["north"], *self.vans["south"]})

    def weigh_parcel(self, label: Label) -> dict[str, int]:
        """Weigh one parcel in the depot."""
        return {"kilograms": self._waiting(label)["kilograms"]}

    def insure_parcel(self, label: Label, euros: Euros) -> str:
        """Insure one parcel in the depot."""
        if euros not in range(100, 501, 100):
            raise ToolRefused(f"{euros} euros cannot be insured: give 100 to 500 in hundreds")
        self._waiting(label)["euros"] = euros
        return f"insured for {euros}"

    def load_parcel(self, label: Label, van: Van) -> str:
        """Put one parcel from the depot into a van."""
        parcel = self._waiting(label)
        if parcel["kilograms"] > 10 and not parcel["euros"]:
            raise ToolRefused("insure the parcel first: it has more than 10 kilograms")
        if len(self.vans[van]) == 2:
            raise ToolRefused(f"the {van} van is full: send the van first")
        self.vans[van].append(label)
        return f"{len(self.vans[van])} of 2 places taken"

    def open_gate(self) -> None:
        """Open the depot's gate; it closes behind every van."""
        self.gate_open = True

    def send_van(self, van: Van) -> list[str]:
        """Let a loaded van drive off; answers what it carries."""
        if not self.vans[van]:
            raise ToolRefused(f"the {van} van is empty: load a parcel first")
        if not self.gate_open:
            raise ToolRefused("open the gate first")
        sent, self.vans[van], self.gate_open = self.vans[van], [], False
        self.parcels = {label: parcel for label, parcel in self.parcels.items() if label not in sent}
        return sent

    def _waiting(self, label: str) -> dict[str, int]:
        if label not in self.list_parcels():
            raise ToolRefused(f"no parcel {label!r} waits in the depot: list parcels first")
        return self.parcels[label]


def depot(starts: int = 40, seed: int = 0) -> PythonEnvironment:
    """Return the environment that ``environment.name: environments.example:depot`` opens; arguments are options."""
    rng = random.Random(seed)
    waiting = [{label: {"kilograms": rng.randint(1, 15)} for label in rng.sample(LABELS, 4)} for _ in range(starts)]
    return PythonEnvironment("depot", Depot, [{"parcels": one, "gate_open": rng.random() < 0.2} for one in waiting])
