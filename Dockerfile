# Penstock on CPUs, for every machine of the architecture it is built on:
#
#   docker build -t penstock .
#   docker run --rm -p 127.0.0.1:8000:8000 penstock     # the demo model
#   docker run --rm -p 127.0.0.1:8000:8000 -v penstock:/home/penstock/.cache penstock Qwen/Qwen3-0.6B
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/penstock
WORKDIR /source
COPY . .
RUN PENSTOCK_ISAS=all /opt/penstock/bin/pip install --no-cache-dir .

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 1000 penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH
USER 1000
WORKDIR /home/penstock
# A volume that is mounted here belongs to the user.
RUN mkdir .cache
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock", "serve", "--host", "0.0.0.0", "--port", "8000"]
