"""The Switchcraft gateway: routes each tool-calling request to the cheapest adequate model."""

__version__ = "0.1.0"
