"""A payment service on Python's standard library: key, row and answer are written in one transaction of SQLite.

Usage: python3 payments.py PORT DIRECTORY [FAULT]

Duplicates wait for the transaction. Faults: "two transactions" reads the key in one transaction and writes in another;
"no keys" ignores keys, for a proxy in front of the service.
"""

import hashlib
import http.server
import json
import os
import sqlite3
import sys
import time
import uuid

PORT, DIRECTORY, FAULT = int(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])
FILE = os.path.join(DIRECTORY, "payments.db")


def open_database():
    database = sqlite3.connect(FILE, timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, amount INTEGER)")
    database.execute(
        "CREATE TABLE IF NOT EXISTS keys (name TEXT PRIMARY KEY, fingerprint BLOB, status INTEGER, location TEXT, body BLOB)"
    )
    return database


class Payments(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.read_body()
        if body is None:
            self.close_connection = True
            return
        keys = self.headers.get_all("Idempotency-Key", [])
        if FAULT == "no keys":
            keys = [str(uuid.uuid4())]
        if len(keys) != 1 or not 1 <= len(keys[0]) <= 255 or not keys[0].isascii():
            return self.answer(400, None, b'{"error": "one key of 1 to 255 ASCII characters is required"}')
        name = json.dumps([self.headers.get("Authorization"), self.command, self.path, keys[0]])
        self.answer(*self.pay_once(name, hashlib.sha256(body).digest(), body))

    do_PUT = do_POST

    def do_GET(self):
        database = open_database()
        count = database.execute("SELECT count(*) FROM payments").fetchone()[0]
        database.close()
        self.answer(200, None, str(count).encode())

    def pay_once(self, name, fingerprint, body):
        """Returns the stored answer, or makes a payment and stores its answer in the same transaction."""
        database = open_database()
        try:
            if FAULT != "two transactions":
                database.execute("BEGIN IMMEDIATE")
            known = database.execute("SELECT fingerprint, status, location, body FROM keys WHERE name = ?", [name]).fetchone()
            if known:
                if known[0] != fingerprint:
                    return 422, None, b'{"error": "the key belongs to another request"}'
                return known[1:]
            try:
                amount = int(json.loads(body)["amount"])
            except (ValueError, KeyError, TypeError):
                amount = 0
            if amount <= 0:
                return 400, None, b'{"error": "an amount is missing"}'
            time.sleep(0.01)
            if FAULT == "two transactions":
                database.execute("BEGIN IMMEDIATE")
            payment = database.execute("INSERT INTO payments (amount) VALUES (?)", [amount]).lastrowid
            answer = 201, f"/payments/{payment}", json.dumps({"payment": payment}).encode()
            database.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)", [name, fingerprint, *answer])
            database.execute("COMMIT")
            return answer
        finally:
            database.close()  # rolls back what is not committed

    def read_body(self):
        """Returns the body, or None if the request breaks off."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def answer(self, status, location, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 200
    daemon_threads = True


open_database().close()
Server(("127.0.0.1", PORT), Payments).serve_forever()
