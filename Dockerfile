# The gateway for the CPU (`docker build .`) or for CUDA (`docker build --target gpu .`).
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY router_service router_service
COPY training training
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip wheel --no-deps --wheel-dir /dist .

# A virtual environment without pip: what serves cannot install.
FROM ${PYTHON_IMAGE} AS cpu-packages
COPY --from=wheel /dist /dist
RUN python -m venv --without-pip /opt/switchcraft
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/switchcraft/bin/python install "$(ls /dist/*.whl)[cpu]"

FROM ${PYTHON_IMAGE} AS gpu-packages
COPY --from=wheel /dist /dist
RUN python -m venv --without-pip /opt/switchcraft
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip --python /opt/switchcraft/bin/python install "$(ls /dist/*.whl)[gpu]"

FROM ${PYTHON_IMAGE} AS runtime
LABEL org.opencontainers.image.title="Switchcraft" \
      org.opencontainers.image.description="A model router for agents that call tools" \
      org.opencontainers.image.licenses="Apache-2.0"
# Nothing is written but under /tmp and here; a new volume takes over the owner of where it is mounted.
RUN install --directory --owner=10001 --group=10001 \
    /var/lib/switchcraft/decisions /var/lib/switchcraft/artifacts
ENV PATH=/opt/switchcraft/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SWITCHCRAFT_HOST=0.0.0.0
WORKDIR /tmp
# A number: Kubernetes can then tell that it is not root.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["switchcraft"]
CMD ["serve"]

# Needs `router.device: cuda`, and the host's NVIDIA driver by its container toolkit.
FROM runtime AS gpu
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=gpu-packages /opt/switchcraft /opt/switchcraft

FROM runtime AS cpu
COPY --from=cpu-packages /opt/switchcraft /opt/switchcraft
