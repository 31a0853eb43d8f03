# Two targets; no logic here, everything is in the Makefile's lock files and the `multigate` command.
#   docker build --target serving -t multigate-serving .
#   docker build --target training -t multigate-training .                                   (CPU)
#   docker build --target training --build-arg LOCK=requirements-gpu.lock -t multigate-gpu . (CUDA)

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
WORKDIR /app
RUN useradd --create-home multigate

FROM base AS serving
COPY requirements-serving.lock .
RUN pip install --no-cache-dir --require-hashes --no-deps -r requirements-serving.lock
COPY src/multigate/*.py multigate/
COPY verbs multigate/verbs
COPY configs multigate/configs
COPY features multigate/features
COPY explanation multigate/explanation
COPY runtime multigate/runtime
COPY serving multigate/serving
USER multigate
EXPOSE 8500 8501 8502
ENV MODEL_NAME=model MODEL_BASE_PATH=/models/model
# Readiness, for Docker and Compose; Kubernetes asks over gRPC itself (deploy/server.yaml).
HEALTHCHECK --start-period=180s --start-interval=2s --timeout=5s \
    CMD ["python", "-m", "multigate.serving.client.probe"]
# Inside a container the port must be reachable from outside it.
ENTRYPOINT ["python", "-m", "multigate", "serve", "--host=0.0.0.0"]

FROM base AS training
ARG LOCK=requirements.lock
COPY ${LOCK} ./
RUN pip install --no-cache-dir --require-hashes --no-deps -r ${LOCK}
COPY src/multigate/*.py multigate/
COPY verbs multigate/verbs
COPY configs multigate/configs
COPY features multigate/features
COPY explanation multigate/explanation
COPY runtime multigate/runtime
COPY pipeline multigate/pipeline
COPY model multigate/model
COPY serving multigate/serving
COPY candidates multigate/candidates
COPY jobs multigate/jobs
USER multigate
ENTRYPOINT ["python", "-m", "multigate"]
