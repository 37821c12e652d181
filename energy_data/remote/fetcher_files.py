"""The files of a fetcher in its cache folder, and the variables that clients send it."""

SOCKET, LOCK, LOG = "fetcher.socket", "fetcher.lock", "fetcher.log"
SENT = ("AWS_", "AZURE_", "GOOGLE_", "ENERGY_DATA_RETRY")  # begins of their names
