"""Placeholder of the Converse API."""

from router_service.apis.chat.api import ChatApi


class ConverseApi(ChatApi):
    """Placeholder."""

    name = "converse"
    path = "/converse"


CONVERSE = ConverseApi()
