"""How a request is to be served: what decisions and chats have in common, as a caller writes it and as it is sent.

Pure. Which adapters there are, and what their scale may be, is the server's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .fields import invalid, number, text
from .v1 import serving_pb2 as pb


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that the server was started with, and how much of it is added (1: as it was trained)."""

    name: str
    scale: float = 1.0


# An adapter may be given by its name alone.
AdapterName: TypeAlias = str | Adapter
# Which work goes first: interactive when somebody waits for it, batch when it can wait.
ServiceClass: TypeAlias = Literal["interactive", "batch"]

_CLASSES = {
    None: pb.SERVICE_CLASS_UNSPECIFIED,
    "interactive": pb.SERVICE_CLASS_INTERACTIVE,
    "batch": pb.SERVICE_CLASS_BATCH,
}


def adapter_message(adapter: AdapterName | None) -> pb.Adapter | None:
    """The adapter as it is sent; None for the model alone. Raises InvalidRequest."""
    if adapter is None:
        return None
    if isinstance(adapter, str):
        adapter = Adapter(adapter)
    if not isinstance(adapter, Adapter):
        raise invalid("adapter", "expected an adapter's name, or an Adapter")
    name = text(adapter.name, "adapter.name", "expected the name of an adapter, as text")
    return pb.Adapter(name=name, scale=number(adapter.scale, "adapter.scale"))


def service_class_number(service_class: ServiceClass | None) -> pb.ServiceClass:
    """The service class as it is sent; None leaves it to the server. Raises InvalidRequest."""
    if not (service_class is None or isinstance(service_class, str)) or service_class not in _CLASSES:
        raise invalid("service_class", "expected interactive or batch")
    return _CLASSES[service_class]
