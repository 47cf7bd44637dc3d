"""A LiteLLM router whose model group is routed by Switchcraft, in the same process.

LiteLLM keeps its retries, cool-downs and keys: of the deployments that it considers healthy, the
callback only leaves those of the chosen arm. Needs `pip install litellm 'switchcraft-router[cpu]'`
and OPENAI_API_KEY.
"""

import asyncio

import litellm
from litellm.integrations.custom_logger import CustomLogger

from router_service import Router


class SwitchcraftCallback(CustomLogger):
    """Leaves the deployments of the cheapest arm that is likely to answer correctly."""

    def __init__(self, policy: str = "drift=0.05") -> None:
        super().__init__()
        self.router, self.policy = Router.load(), policy

    async def async_filter_deployments(
        self,
        healthy_deployments: list[dict],
        messages: list[dict],
        request_kwargs: dict | None = None,
        **_: object,
    ) -> list[dict]:
        """Return the deployments of the chosen arm; requests without tools are left to LiteLLM."""
        by_arm = {}
        for deployment in healthy_deployments:
            by_arm.setdefault(deployment["model_info"].get("arm"), []).append(deployment)
        tools = (request_kwargs or {}).get("tools")
        if not tools or None in by_arm:
            return healthy_deployments
        request = {"messages": messages, "tools": tools}
        # A decision takes milliseconds of CPU time, so it runs in a thread.
        decision = await asyncio.to_thread(
            self.router.decide, request, policy=self.policy, arms=list(by_arm)
        )
        return by_arm[decision.arm]


callback = SwitchcraftCallback()


async def main() -> None:
    """Send one request to the group `routed`, which has a deployment for each arm."""
    litellm.callbacks = [callback]
    arms = ("gpt-5.2", "gpt-4.1-mini")
    group = [
        {
            "model_name": "routed",
            "litellm_params": {"model": f"openai/{name}"},
            "model_info": {"arm": name},
        }
        for name in arms
    ]
    answer = await litellm.Router(group).acompletion(
        model="routed",
        messages=[{"role": "user", "content": "What is the weather in 'Oslo'?"}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Current weather in a city.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                },
            }
        ],
    )
    for call in answer.choices[0].message.tool_calls:
        print(f"{answer.model} calls {call.function.name}({call.function.arguments})")


if __name__ == "__main__":
    asyncio.run(main())
