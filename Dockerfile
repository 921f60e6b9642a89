# One image for every role: `docker build --tag registry.example/ateplace:v0.1.0 .`
# Nothing is compiled and nothing without a hash is fetched; the second stage has no installer at all.
ARG BASE=docker.io/library/python:3.13-slim@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ONLY_BINARY=:all:
# A wheel's digest is written into what is installed from it, so the times in it must not vary. Zip knows none before 1980.
ENV SOURCE_DATE_EPOCH=315532800
# Dependencies first: they change less often than we do.
COPY requirements.lock requirements-dev.lock ./
RUN python -m venv /opt/ateplace && \
    /opt/ateplace/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements.lock
# setuptools builds our wheel, in an environment that is not copied; its stanza of the lock is enough for that.
RUN awk '/^setuptools==/,!/\\$/' requirements-dev.lock > build.lock && \
    python -m venv /opt/builder && \
    /opt/builder/bin/python -m pip install --quiet --require-hashes --requirement build.lock
COPY . .
RUN /opt/builder/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir wheels . && \
    /opt/ateplace/bin/python -m pip install --quiet --no-compile --no-deps --no-index wheels/*.whl && \
    /opt/ateplace/bin/python -m pip uninstall --quiet --yes pip
# Bytecode for everything but the API client's thousands of models, which nobody imports. It does not depend on the files'
# times: a builder that rewrites them would have it compiled again at every start, as a read-only root keeps nothing. -f:
# what pip happened to import has bytecode already, by time.
RUN /opt/ateplace/bin/python -m compileall -q -f --invalidation-mode unchecked-hash \
    -x '/kubernetes/(aio/)?client/(api|models)/' /opt/ateplace/lib

FROM ${BASE}
ARG VERSION=v0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="ateplace" \
      org.opencontainers.image.description="Places Agent Substrate's worker pods where its node agent is, and the node agent only where they are" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN python -m pip uninstall --quiet --yes --root-user-action=ignore pip && \
    rm -rf "$(python -c 'import ensurepip, pathlib; print(pathlib.Path(ensurepip.__file__).parent)')"
# Owned by root and not writable: a process that runs as 65532 cannot change its own code.
COPY --from=build /opt/ateplace /opt/ateplace
# The root file system may be read-only: bytecode is there already, and nothing else is ever written.
ENV PATH=/opt/ateplace/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["ateplace"]
