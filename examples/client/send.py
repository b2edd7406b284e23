# Sends an order with one key until the answer is final. Copy this file, and change it to your API.
#
# After a crash, call send again with the stored key and body. After a 401 or user-unknown, get new credentials; after
# body-invalid, correct the body. Then call send with the same key.
#
# The program follows no redirects, because a redirect may send the key to another host. It limits the pause that a server asks
# for, and each wait for bytes, because an answer may stall.
import random
import time

import requests

LONGEST = 60  # seconds: a pause, and a wait for bytes
BROKEN = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)

def send(session, url, order):
    # order.key, which is str(uuid.uuid4()), and order.body were stored before the first call. order.deadline is well before
    # the answer expires: 20 hours after the order was made.
    pause = 0.5
    while True:
        asked = 0
        try:
            headers = {"Idempotency-Key": order.key, "Content-Type": "application/json"}
            answer = session.post(url, data=order.body, headers=headers, timeout=(5, LONGEST), allow_redirects=False)
            if not may_retry(answer):
                return answer
            asked = retry_after(answer)
        except BROKEN:
            pass  # no answer, or a part of one
        if time.time() > order.deadline:
            raise TimeoutError(f"order {order.key} has no final answer: let a person look")
        time.sleep(min(max(pause * (1 + random.random()), asked), LONGEST))
        pause *= 2

def may_retry(answer):
    retry, kind = advice(answer)
    if retry in ("same-key", "new-key", "never"):
        return retry == "same-key" and not kind.endswith(("body-invalid", "user-unknown"))
    status = answer.status_code
    return status >= 500 or status in (408, 425, 429, 499) or status == 409 and "Retry-After" in answer.headers

def advice(answer):
    if not answer.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None, None
    try:
        problem = answer.json()
        return problem["retry"], str(problem.get("type"))
    except (ValueError, TypeError, KeyError):  # no JSON, no object, no advice
        return None, None

def retry_after(answer):
    try:
        return int(answer.headers.get("Retry-After", 0))
    except ValueError:  # malformed, or a date
        return 0
