"""A node that answers paths: `~device@version` names a Python class, the rest is its argument."""

from .codec_device import CodecDevice
from .device import Device, Stream, StreamObserver, key
from .errors import (
    BadGateway,
    BadRequest,
    ConfigError,
    Forbidden,
    GatewayTimeout,
    HyperbeamError,
    MethodNotAllowed,
    NoRoute,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from .message import Atom, Link, Message

__version__ = "0.1.0"

__all__ = [
    "Atom",
    "BadGateway",
    "BadRequest",
    "CodecDevice",
    "ConfigError",
    "Device",
    "Forbidden",
    "GatewayTimeout",
    "HyperbeamError",
    "Link",
    "Message",
    "MethodNotAllowed",
    "NoRoute",
    "NotFound",
    "Stream",
    "StreamObserver",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "key",
]
