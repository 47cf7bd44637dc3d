# The gateway for the CPU (`docker build .`) or for CUDA (`docker build --target gpu .`).
# Pinned by digest, because a tag can move. `python deploy/pin_images.py` updates it.
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements/installer.lock requirements/build.lock requirements/sbom.lock requirements/
COPY router_service router_service
COPY training training
COPY deploy/install.sh deploy/
# Modules are compiled now, because the container cannot write. The cache is another file system.
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy

FROM build AS cpu-packages
COPY requirements/cpu.lock requirements/
RUN --mount=type=cache,target=/root/.cache sh deploy/install.sh cpu /opt/switchcraft

FROM build AS gpu-packages
COPY requirements/gpu.lock requirements/
RUN --mount=type=cache,target=/root/.cache sh deploy/install.sh gpu /opt/switchcraft

FROM ${PYTHON_IMAGE} AS runtime
LABEL org.opencontainers.image.title="Switchcraft" \
      org.opencontainers.image.description="A model router for agents that call tools" \
      org.opencontainers.image.licenses="Apache-2.0"
# The gateway writes only here and below /tmp. A new volume gets the owner of its mount point.
RUN install --directory --owner=10001 --group=10001 \
    /var/lib/switchcraft/decisions /var/lib/switchcraft/artifacts
ENV PATH=/opt/switchcraft/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SWITCHCRAFT_HOST=0.0.0.0
WORKDIR /tmp
# A number, so that Kubernetes can verify that it is not root.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["switchcraft"]
CMD ["serve"]

# Needs the host's NVIDIA driver by its container toolkit. docs/gpu.md says what else.
FROM runtime AS gpu
ENV SWITCHCRAFT_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=gpu-packages /opt/switchcraft /opt/switchcraft

FROM runtime AS cpu
COPY --from=cpu-packages /opt/switchcraft /opt/switchcraft
