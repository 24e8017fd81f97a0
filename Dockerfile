# A node with the embedded model. docker build -t hyperbeam-node .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG EXTRAS=llama
WORKDIR /src
RUN python -m venv /opt/hyperbeam
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY hyperbeam hyperbeam
COPY devices devices
RUN /opt/hyperbeam/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
RUN HB_MODELS=/opt/hyperbeam/models /opt/hyperbeam/bin/hyperbeam models pull

FROM python:${PYTHON}-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/hyperbeam --create-home hyperbeam \
    && mkdir /etc/hyperbeam
COPY --from=build /opt/hyperbeam /opt/hyperbeam
ENV PATH=/opt/hyperbeam/bin:$PATH \
    HB_HOME=/var/lib/hyperbeam \
    HB_MODELS=/opt/hyperbeam/models \
    PYTHONUNBUFFERED=1
USER hyperbeam
# hyperbeam.toml and routes.toml, where there are any, are read from here.
WORKDIR /etc/hyperbeam
VOLUME /var/lib/hyperbeam
EXPOSE 8734
# Alive, be the model loaded or not: /health says whether it answers.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8734/~meta@1.0/live', timeout=4)"]
ENTRYPOINT ["hyperbeam"]
CMD ["serve", "--host", "0.0.0.0"]
