"""The benchmark's own command line, with the router as a model of two APIs.

The models are added as its contributing guide says: by a configuration in its table, with the
handler of an API that the benchmark supports.
"""

from __future__ import annotations

import sys

from bfcl_eval.__main__ import cli
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.model_handler.api_inference.openai_response import OpenAIResponsesHandler

HANDLERS = {"chat": OpenAICompletionsHandler, "responses": OpenAIResponsesHandler}


def main(categories: str) -> None:
    """Answer the entries named by the project folder through each API, and score the answers."""
    for name, handler in HANDLERS.items():
        MODEL_CONFIG_MAPPING[name] = ModelConfig(
            model_name="switchcraft",
            display_name=name,
            url="",
            org="",
            license="Apache-2.0",
            model_handler=handler,
            is_fc_model=True,
            underscore_to_dot=True,
        )
    models = ["--model", ",".join(HANDLERS)]
    generate = ["generate", *models, "--run-ids", "--num-threads", "4"]
    evaluate = ["evaluate", *models, "--test-category", categories, "--partial-eval"]
    cli(generate, standalone_mode=False)
    cli(evaluate, standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1])
