-- name: CreateOrder :one
INSERT INTO orders (article, pieces) VALUES ($1, $2) RETURNING id;

-- name: Take :one
UPDATE stock SET pieces = pieces - sqlc.arg(pieces) WHERE article = sqlc.arg(article) RETURNING pieces AS pieces_left;

-- name: CountOrders :one
SELECT count(*) FROM orders;
