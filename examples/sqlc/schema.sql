CREATE TABLE stock (article text PRIMARY KEY, pieces integer NOT NULL);
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, article text NOT NULL, pieces integer NOT NULL);
