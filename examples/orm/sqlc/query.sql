-- name: Hotel :one
SELECT * FROM hotels WHERE id = $1;

-- name: InCity :many
SELECT * FROM hotels WHERE city = $1 ORDER BY id;

-- name: Lock :one
SELECT * FROM hotels WHERE id = $1 FOR UPDATE;

-- name: Move :exec
UPDATE hotels SET city = $2 WHERE id = $1;
