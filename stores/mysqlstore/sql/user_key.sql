-- The index of "read_counted", as a part of CREATE TABLE or ALTER TABLE. Names are in ASCII, and few have more characters.
KEY users (user_id(255), expires)
