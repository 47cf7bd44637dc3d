"""The benchmark's own command line, for a model at the gateway.

How to add a model is as its contributing guide says: a configuration in its table, with the
handler of an API that the benchmark knows.
"""

from __future__ import annotations

import sys

from bfcl_eval.__main__ import cli
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.model_handler.api_inference.openai_response import OpenAIResponsesHandler

HANDLERS = {
    "switchcraft-chat": OpenAICompletionsHandler,
    "switchcraft-responses": OpenAIResponsesHandler,
}


def main(model: str, categories: str) -> None:
    """Answer the entries that the project folder names, and score the answers."""
    MODEL_CONFIG_MAPPING[model] = ModelConfig(
        model_name="switchcraft",
        display_name=model,
        url="",
        org="",
        license="Apache-2.0",
        model_handler=HANDLERS[model],
        is_fc_model=True,
        underscore_to_dot=True,
    )
    generate = ["generate", "--model", model, "--run-ids", "--num-threads", "4"]
    evaluate = ["evaluate", "--model", model, "--test-category", categories, "--partial-eval"]
    cli(generate, standalone_mode=False)
    cli(evaluate, standalone_mode=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
