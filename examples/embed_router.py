"""Decide in your own program which model to use, without the gateway.

The shipped router knows eight models of December 2025. To use your own router, pass the directory
of its artifact to `Router.load`. `arms` limits the choice to the models that you have.
"""

from router_service import Router

router = Router.load()
decision = router.decide(
    {
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [
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
    },
    policy="drift=0.05",
    arms=["gpt-5.2", "gpt-4.1-mini"],
)
print(f"{decision.arm}: {decision.reason}")
for arm, probability in decision.probabilities.items():
    print(f"  {arm}: p={probability:.3f} cost={decision.cost_usd[arm]:.6f} USD")
