"""objcp.py FILE HOST KEY: puts a file into the object store."""

import http.client
import sys

path, host, key = sys.argv[1:]
connection = http.client.HTTPConnection(host)
with open(path, "rb") as file:
    connection.request("PUT", key, body=file.read())
print(connection.getresponse().status)
