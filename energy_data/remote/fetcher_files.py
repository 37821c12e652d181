"""The files of a fetcher in its cache folder."""

SOCKET, LOCK, LOG = "fetcher.socket", "fetcher.lock", "fetcher.log"
