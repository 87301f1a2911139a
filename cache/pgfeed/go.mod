module github.com/levee-go/levee/cache/pgfeed

go 1.26.0

replace github.com/levee-go/levee => ../..

require (
	github.com/jackc/pgio v1.0.0 // indirect
	github.com/jackc/pglogrepl v0.0.0-20250509230407-a9884f6bd75a // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	golang.org/x/crypto v0.17.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
