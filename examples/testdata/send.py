# Sends an order by examples/client/send.py to one URL after the other, and prints what came of each. The arguments are the path of
# that program, how many seconds a wait for bytes may take in place of what the program allows it, and the URLs. Pauses are
# noted, and not made.
import json
import sys
import time
import types
import uuid

import requests

path, patience, *urls = sys.argv[1:]
pauses, bounds = [], []
time.sleep = pauses.append


class Session(requests.Session):
    def request(self, *args, timeout=None, **kwargs):
        bounds.append(timeout[1])
        return super().request(*args, timeout=(5, float(patience)), **kwargs)


with open(path) as program:
    names = {}
    exec(program.read(), names)
for url in urls:
    pauses.clear()
    bounds.clear()
    order = types.SimpleNamespace(key=str(uuid.uuid4()), body='{"amount":4200}', deadline=time.time() + 3600)
    answer = names["send"](Session(), url, order)
    print(json.dumps({"status": answer.status_code, "pauses": pauses, "bounds": bounds}))
